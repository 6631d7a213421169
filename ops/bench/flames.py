"""Flame pictures of the API and of a worker under short requests: `python -m ops.bench.flames`, with py-spy installed.

They go to `ops/pictures/`. py-spy's title has the process id, so they get another one.
"""

import re
import signal
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from ops.bench.load import run_load
from ops.bench.measures import SHORT
from ops.bench.phases import MOCKER
from ops.bench.processes import process
from ops.bench.profiler import recording
from ops.bench.systems import xylem

_PICTURES = Path(__file__).parents[1] / "pictures"
_MODEL_DIR = Path(".xylem/models/SmolLM2-135M-Instruct")
_REQUESTS = 15_000
_RATE = 100  # samples per second
_OPTIONS = ("--gil", "--format", "flamegraph")  # without --gil, py-spy counts threads that wait for work as busy
_SUBTITLE = "64 connections, short requests, one token each; width is time with Python's lock"
_TITLE = re.compile(r'(<text id="title"[^>]*>)[^<]*(</text>)')


def main() -> None:
    """Starts the system, loads it, and records."""
    pool = {"model": "mock", "engine": "mock", "path": str(_MODEL_DIR.resolve()), **MOCKER, "args": {"speedup": 1e6}}
    with TemporaryDirectory() as folder_name, ExitStack() as up:
        folder = Path(folder_name)
        system = up.enter_context(xylem(folder / "xylem", pool, 2))
        run_load(system, [*SHORT, "--requests", "2000"], folder / "warm.log")
        pids = {"api": system.watch["api"][0], "worker": system.watch["workers"][0]}
        with ExitStack() as spies:
            children = [
                spies.enter_context(
                    process(recording(pid, folder / f"{name}.svg", _RATE, *_OPTIONS), folder / f"{name}.log")
                )
                for name, pid in pids.items()
            ]
            run_load(system, [*SHORT, "--requests", str(_REQUESTS)], folder / "load.log")
            for child in children:
                child.send_signal(signal.SIGINT)
            for child in children:
                child.wait(60)
        for name in pids:
            svg = _TITLE.sub(rf"\g<1>{name}: {_SUBTITLE}\g<2>", (folder / f"{name}.svg").read_text())
            (_PICTURES / f"flame-{name}.svg").write_text(svg)


if __name__ == "__main__":
    main()
