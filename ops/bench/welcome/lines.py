"""Rows through `xylem batch run` on a fleet of mock engines: how many come out wrong, after failures and a Ctrl-C."""

import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from ops.bench.load import System
from ops.bench.parts import Say
from ops.bench.processes import Unavailable
from ops.bench.size import Size
from ops.bench.systems import fleet

_POOL_NAME, _ENDPOINT = "decode-pool-a", "/v1/completions"
_POOL = {
    "model": "mock", "engine": "mock", "max_running": 64, "max_model_len": 2048, "args": {"speedup": float("inf")},
}  # fmt: skip
_TOO_LONG = 1000  # of so many rows one doesn't fit the model
_RUN_LIMIT_S = 900.0


def lines(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Rows that are not at their place, or have another row's answer; and the command's memory.

    The answer of an endpoint that repeats its prompt shows whose it is. Raises: Unavailable.
    """
    rows = size.of(100_000, 10_000, 300)
    source, output = directory / "in.csv", directory / "out.csv"
    directory.mkdir(parents=True, exist_ok=True)
    _write(source, rows)
    with fleet(directory / "fleet", {_POOL_NAME: _POOL}, {_POOL_NAME: 2}, 1) as system:
        command = _command(system, source, output)
        say(f"{rows} rows, and a Ctrl-C")
        began = time.monotonic()
        code, _ = _run(command, directory, lambda: _done(system) > rows // 4)
        if code != 130:
            raise Unavailable(f"the command ended with {code} before its Ctrl-C: see {directory}/command.log")
        say("the same command")
        code, rss_mb = _run(command, directory, None)
        if code != 1:
            raise Unavailable(f"the command ended with {code}, and rows that can't be answered mean 1")
        seconds = time.monotonic() - began
    return {"lines_joined_wrong": _wrong(output, rows), "lines_s": round(seconds, 1), "lines_rss_mb": round(rss_mb)}


def _prompt(number: int) -> str:
    return "long " * 4000 if _fails(number) else f"Row {number}, and no other:"


def _fails(number: int) -> bool:
    return number % _TOO_LONG == 7


def _write(path: Path, rows: int) -> None:
    with path.open("w") as file:
        writer = csv.writer(file)
        writer.writerow(["number", "text"])
        writer.writerows([number, _prompt(number)] for number in range(rows))


def _command(system: System, source: Path, output: Path) -> list[str]:
    what = ["--model", system.model, "--prompt", "{{text}}", "--endpoint", _ENDPOINT, "--body", '{"echo": true}']
    where = ["--max-tokens", "2", "--output", str(output), "--url", system.url]
    return [sys.executable, "-m", "app.cli", "batch", "run", str(source), *what, *where]


def _run(command: list[str], directory: Path, interrupt: Callable[[], bool] | None) -> tuple[int, float]:
    """The exit code, and the most MB of memory. It gets a Ctrl-C when `interrupt` says so."""
    until = time.monotonic() + _RUN_LIMIT_S
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in a shell's background it is ignored
    with (directory / "command.log").open("ab") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                process.returncode = os.waitstatus_to_exitcode(status)
                return process.returncode, usage.ru_maxrss / 1024
            if time.monotonic() > until:
                process.kill()
                raise Unavailable(f"the command takes more than {_RUN_LIMIT_S:.0f} s")
            if interrupt is not None and interrupt():
                process.send_signal(signal.SIGINT)
                interrupt = None
            time.sleep(0.1)


def _done(system: System) -> int:
    batches = httpx.get(f"{system.url}/v1/batches").raise_for_status().json()["data"]
    return sum(batch["request_counts"]["completed"] for batch in batches)


def _wrong(output: Path, rows: int) -> int:
    numbers, wrong = count(), 0
    with output.open() as file:
        for number, row in zip(numbers, csv.DictReader(file), strict=False):
            is_own = row["error"] if _fails(number) else row["answer"].startswith(_prompt(number))
            wrong += not is_own or row["number"] != str(number) or row["text"] != _prompt(number)
    return wrong + abs(rows - next(numbers) + 1)
