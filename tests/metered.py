"""`python -m tests.metered FILE`: `xylem api`, which writes into FILE what held its event loop, and for how long.

In CPU time of the loop's thread, which does not count what the machine does besides. While other processes share its
caches and cores the same work takes longer: a yardstick that is timed right afterwards says how much, and is divided
out. Each line is milliseconds and the callback. uvloop runs callbacks in C, where they can't be timed; so this is
asyncio's own loop.
"""

import asyncio
import sys
import time
from asyncio.events import Handle
from collections.abc import Callable
from pathlib import Path

import uvicorn

from app.api.http.uvicorn_protocol import DirectProtocol
from app.api.main import create_app
from app.settings import load_settings

_WORTH_MS = 10.0  # shorter ones are not written down


def _yardstick() -> float:
    """The CPU time of some work that is always the same."""
    began = time.thread_time()
    sorted(str(i) for i in range(5000))
    return time.thread_time() - began


def metered(run: Callable[[Handle], None], file: Path) -> Callable[[Handle], None]:
    """`run` of a callback, timed."""
    usual = min(_yardstick() for _ in range(20))

    def timed(self: Handle) -> None:
        began = time.thread_time()
        run(self)
        took = 1000 * (time.thread_time() - began)
        if took >= _WORTH_MS and (took := took / max(1.0, min(_yardstick() for _ in range(3)) / usual)) >= _WORTH_MS:
            with file.open("a") as log:
                log.write(f"{took:.1f} {self!r}"[:400].replace("\n", " ") + "\n")

    return timed


def main(file: Path) -> None:
    settings = load_settings()
    app = create_app(settings)
    config = uvicorn.Config(app, port=settings.port, http=DirectProtocol, ws="none", lifespan="on", log_config=None)
    Handle._run = metered(Handle._run, file)  # type: ignore[method-assign]
    file.touch()
    with asyncio.Runner() as runner:
        runner.run(uvicorn.Server(config).serve())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
