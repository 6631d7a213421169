"""One person's first hour with an installed Xylem, in an empty folder: commands, edits, seconds."""

import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from tests.stack import BIN, free_port, stop, wait_until

_LIMIT_S = 120.0


class Effort(NamedTuple):
    """Commands, edits and seconds of an hour."""

    commands: int
    edits: int  # files that were written or changed
    seconds: float


class Hour:
    """Counts what is typed here, but not what a program of the person's asks."""

    def __init__(self, folder: Path, exits: ExitStack) -> None:
        self.folder, self.port, self.flower_port = folder, free_port(), free_port()
        self.typed: list[str] = []
        self._edits: set[str] = set()
        self._exits, self._began = exits, time.monotonic()
        inherited_env = {name: value for name, value in os.environ.items() if not name.startswith("XYLEM_")}
        self._env = inherited_env | {
            "PATH": f"{BIN}:{inherited_env['PATH']}",
            "HOME": str(folder),
            "XYLEM_HOME": str(folder / "home"),
            "XYLEM_PORT": str(self.port),  # else 8000, which may be taken
        }

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def effort(self) -> Effort:
        return Effort(len(self.typed), len(self._edits), time.monotonic() - self._began)

    def write(self, name: str, text: str) -> None:
        """Edits a file of this folder."""
        self._edits.add(name)
        (self.folder / name).write_text(text)

    def run(self, command: str, **env: str) -> str:
        """Types a command, and waits; its output. Raises: AssertionError with it if the command fails."""
        self.typed.append(command)
        run = subprocess.run(
            shlex.split(command), cwd=self.folder, env=self._env | env, check=False, capture_output=True, text=True,
            timeout=_LIMIT_S,
        )  # fmt: skip
        assert run.returncode == 0, f"{command}: {run.stdout}{run.stderr}"
        return run.stdout

    def start(self, command: str, **env: str) -> "subprocess.Popen[bytes]":
        """Types a command that goes on until the hour ends. Its output goes to `output` of this folder."""
        self.typed.append(command)
        with (self.folder / "output").open("ab") as output:
            process = subprocess.Popen(
                shlex.split(command), cwd=self.folder, env=self._env | env, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        self._exits.callback(stop, process)
        return process

    def serve(self, command: str, **env: str) -> "subprocess.Popen[bytes]":
        """Types `xylem serve` or `xylem up`, and waits until it says how to ask."""
        process = self.start(f"{command} --flower-port {self.flower_port}", **env)
        self.until(lambda: "curl -N" in self.output, "how to ask is said")
        return process

    def ask_as_told(self) -> None:
        """Types the request that `xylem` prints at its start. Raises: AssertionError if no token comes."""
        command = next(line for line in self.output.splitlines() if line.startswith("curl -N"))
        events = [line.removeprefix("data: ") for line in self.run(command).splitlines() if line.startswith("data: ")]
        assert events[-1] == "[DONE]", events
        assert len(events) > 2

    @property
    def output(self) -> str:
        """The output of what was started."""
        return (self.folder / "output").read_text()

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        return wait_until(condition, f"{what}: {self.output[-2000:] if self._started else ''}", _LIMIT_S)

    def ask(self, path: str, key: str = "", **body: Any) -> httpx.Response:
        """The answer to a program of the person's: a POST if there is a body."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        with httpx.Client(base_url=self.url, headers=headers, timeout=_LIMIT_S) as client:
            return client.post(path, json=body) if body else client.get(path)

    @property
    def _started(self) -> bool:
        return (self.folder / "output").exists()


@contextmanager
def hour(folder: Path) -> Iterator[Hour]:
    """Begins one; at its end, what it started is stopped."""
    with ExitStack() as exits:
        yield Hour(folder, exits)
