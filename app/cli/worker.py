"""`xylem worker POOL`: a shorter `celery -A app worker -Q POOL`."""

import os
import sys
from typing import Annotated

import typer


def worker(
    context: typer.Context,
    pool: Annotated[str, typer.Argument(help="A pool of the pools file.")],
) -> None:
    """Run one worker of POOL. Arguments after POOL go to `celery worker`."""
    argv = [sys.executable, "-m", "celery", "-A", "app", "worker", "-Q", pool, *context.args]
    os.execv(sys.executable, argv)  # noqa: S606  # this process becomes the worker, so signals reach it
