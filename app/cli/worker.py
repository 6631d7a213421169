"""`xylem worker POOL`: a shorter `celery -A app worker -Q POOL`."""

import json
import os
import sys
from typing import Annotated

import typer

from app.cli.report import refuse


def worker(
    context: typer.Context,
    pool: Annotated[str, typer.Argument(help="A pool of the pools file.")],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="An argument of its engine, before those of the pool: key=value, key.key=value."),
    ] = None,
    show_config: Annotated[
        bool, typer.Option("--show-config", help="Print the worker's pool and its engine's arguments, and end.")
    ] = False,
) -> None:
    """Run one worker of POOL. Other arguments go to `celery worker`."""
    from app.errors import XylemError
    from app.pools.engine_args import merged, read_overrides
    from app.settings import load_settings

    try:
        settings = load_settings()
        args = merged(settings.engine_args, read_overrides(overrides or []))
        if show_config:
            from app.cli.show_config import shown_config

            typer.echo(shown_config(settings.model_copy(update={"engine_args": args}), pool), nl=False)
            return
    except XylemError as exc:
        refuse(exc.message)
    argv = [sys.executable, "-m", "celery", "-A", "xylem", "worker", "-Q", pool, *context.args]
    # This process becomes the worker, so signals reach it.
    os.execve(sys.executable, argv, os.environ | ({"XYLEM_ENGINE_ARGS": json.dumps(args)} if args else {}))  # noqa: S606 (no shell)
