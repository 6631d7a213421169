"""Prints the way of a chat through the API process, in order; at the end one line of JSON.

A function counts if it is called for each of several requests, the second and those that follow: what runs beside them
by chance doesn't. `plain` is a streamed chat; `full` has a key, tools and `store`.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from rich.console import Console
from rich.progress import Progress

from ops.bench.older import tree
from ops.bench.parts import table
from ops.bench.processes import Unavailable
from ops.bench.systems import fleet
from tests.stack import BIN, ROOT

_MARK = "x-walk"
_TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
)
_TIMES = 6
_KEYS_READ_S = 2.5  # API replicas know of a new key within two seconds
_TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
_PLAIN = {
    "model": "bench", "stream": True, "max_tokens": 4, "messages": [{"role": "user", "content": "Tell me of rivers."}],
}  # fmt: skip
_FULL = _PLAIN | {"tools": [_TOOL], "store": True, "metadata": {"for": "me"}}


class Step(NamedTuple):
    file: str
    line: int
    name: str
    lines: int


def main() -> None:
    options = argparse.ArgumentParser(prog="make walk")
    options.add_argument("--before", help="a commit that is measured, too")
    commit = options.parse_args().before
    console = Console(width=None if Console().is_terminal else 160)
    with tempfile.TemporaryDirectory() as folder, Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("the way of a chat", total=4 if commit else 2)

        def walk(root: Path, suffix: str) -> None:
            for name, body in (("", _PLAIN), ("_full", _FULL)):
                ways[name + suffix] = _way(Path(folder) / f"walk{name}{suffix}", root, body, with_key=body is _FULL)
                progress.advance(task)

        ways: dict[str, list[Step]] = {}
        walk(ROOT, "")
        if commit:
            with tree(Path(folder) / "tree", commit) as root:
                walk(root, "_before")
    console.print(_shown("plain", ways[""]), _shown("full", ways["_full"]))
    print(json.dumps({f"{key}{name}": value for name, way in ways.items() for key, value in _figures(way).items()}))


def _way(folder: Path, root: Path, body: dict[str, Any], *, with_key: bool) -> list[Step]:
    """The functions that are called for each request but the first, which is not traced, in the order of the second."""
    walks = folder.with_suffix(".walks")
    env = {
        "PYTHONPATH": f"{root}:{Path(__file__).parent / 'injected'}", "XYLEM_WALK_MARK": _MARK,
        "XYLEM_WALK_FILE": str(walks.absolute()), "XYLEM_REQUIRE_KEYS": str(with_key).lower(),
    }  # fmt: skip
    template = folder.with_suffix(".jinja")
    template.write_text(_TEMPLATE)
    rules = {"model": "bench", "engine": "mock", "dialect": "qwen3", "chat_template": str(template)}
    pool = "decode-pool-a"
    with fleet(folder, {pool: rules}, {pool: 1}, more_env=env, root=root) as system, _client(system, with_key) as http:
        os.kill(system.watch["api"][0], signal.SIGUSR2)
        for turn in range(_TIMES):
            answer = http.post("/v1/chat/completions", json=body, headers={_MARK: "1"} if turn else {})
            if answer.is_error:
                raise Unavailable(answer.text)
    first, *others = [[Step(*step) for step in json.loads(line)] for line in walks.read_text().splitlines()]
    assert len(others) == _TIMES - 2, f"{len(others) + 1} of {_TIMES - 1} requests were traced"
    return [step for step in first if all(step in other for other in others)]


@contextmanager
def _client(system: Any, with_key: bool) -> Iterator[httpx.Client]:
    key = ""
    if with_key:
        command, env = [str(BIN / "xylem"), "keys", "create", "walker"], {"XYLEM_REDIS_URL": system.redis_url}
        output = subprocess.run(command, env=os.environ | env, check=True, capture_output=True, text=True).stdout
        key = output.split()[-1]
        time.sleep(_KEYS_READ_S)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=system.url, headers=headers, timeout=30) as http:
        yield http


def _figures(way: list[Step]) -> dict[str, float]:
    return {
        "functions": len(way),
        "files": len({step.file for step in way}),
        "median_lines": statistics.median(step.lines for step in way),
        "longest_function": max(step.lines for step in way),
        "longest_file": max(
            len((ROOT / step.file).read_text().splitlines()) for step in way if (ROOT / step.file).exists()
        ),
    }


def _shown(name: str, way: list[Step]) -> Any:
    rows = table(f"The way of a chat: {name}", "file", "line", "function", "lines", left=("file", "function"))
    last = ""
    for step in way:
        rows.add_row("" if step.file == last else step.file, str(step.line), step.name, str(step.lines))
        last = step.file
    return rows


if __name__ == "__main__":
    main()
