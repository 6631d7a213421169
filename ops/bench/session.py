"""The common beginning of every benchmark."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


@contextmanager
def measuring(name: str, out: Path) -> Iterator[tuple[Path, Progress, TaskID]]:
    """A new folder under `out`, and progress on stderr. SIGTERM ends the session like Ctrl-C."""
    signal.signal(signal.SIGTERM, _interrupt)
    out_dir = (out / time.strftime(f"{name}-%Y%m%d-%H%M%S")).resolve()
    out_dir.mkdir(parents=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield out_dir, progress, progress.add_task("checking")


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt
