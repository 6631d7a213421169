"""Processes of a deployment, without the seconds that each of them needs to import what it runs.

One process has imported all that and done nothing else; a fork of it runs the very scripts `xylem` and `celery`.
What it has read before is no setting: those each fork reads from an environment of its own.
"""

import gc
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import orjson

_IMPORTED = (
    "app.api.main", "app.api.http.uvicorn_protocol", "app.cli.main", "app.engines.mock.engine", "app.runner.runner",
    "celery.__main__", "celery.apps.worker", "celery.bin.celery", "celery.bin.worker", "celery.concurrency.thread",
    "kombu.transport.redis", "uvicorn", "uvloop", "workers.engine.kv_event_feed", "workers.engine.hang_watchdog",
)  # fmt: skip
# What the engine's own process imports is here too: it is forked as well, where vLLM spawns one on a CPU.
_VLLM = (
    "app.engines.vllm.engine", "app.engines.vllm.one_process", "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker", "vllm.model_executor.models.llama",
)  # fmt: skip


class Forked(subprocess.Popen[bytes]):
    """As if it were a child of ours: one that has ended is there until somebody asks."""

    def __init__(self, args: list[str], cwd: Path, env: dict[str, str], log: Path, *, vllm: bool = False) -> None:
        """`vllm`: which it is going to import."""
        self.args, self.returncode, self._server = args, None, _server(*_VLLM * vllm)
        self.pid = self._server.ask({"args": args, "cwd": str(cwd), "env": env, "log": str(log)})

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.ask(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = time.monotonic() + (1e9 if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            time.sleep(0.01)
        return code


class _Server:
    def __init__(self, *imported: str) -> None:
        # In a session of its own, so that it hears no Ctrl-C; it ends, with all its forks, when its input does.
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *imported],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # numpy starts no threads when it is imported
        )
        self._lock = threading.Lock()

    def ask(self, what: dict[str, Any] | int) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(orjson.dumps(what) + b"\n")
            self._process.stdin.flush()
            return orjson.loads(self._process.stdout.readline())


@cache
def _server(*imported: str) -> _Server:
    return _Server(*imported)


def _serve() -> list[str]:
    """Returns in each fork: what it is to run."""
    children: set[int] = set()
    while line := sys.stdin.buffer.readline():
        asked, answer = orjson.loads(line), None
        if isinstance(asked, dict):
            answer = os.fork()
            if not answer:
                return _become(**asked)
            children.add(answer)
        else:
            pid, status = os.waitpid(asked, os.WNOHANG)
            children.discard(pid)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        os.write(1, orjson.dumps(answer) + b"\n")
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    sys.exit()


def _become(args: list[str], cwd: str, env: dict[str, str], log: str) -> list[str]:
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    if "torch" in sys.modules and "OMP_NUM_THREADS" in env:  # which OpenMP read when it was imported
        sys.modules["torch"].set_num_threads(int(env["OMP_NUM_THREADS"]))
    for fd, path in ((0, os.devnull), (1, log), (2, log)):
        opened = os.open(path, os.O_RDWR | os.O_APPEND)
        os.dup2(opened, fd)
        os.close(opened)
    return args


def _main() -> None:
    for name in (*_IMPORTED, *sys.argv[1:]):
        import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208
    if _VLLM[0] in sys.argv:
        # A core is a fork of what has imported it, and loads in 5 s instead of 20.
        engine_start = vars(sys.modules["vllm.v1.engine.utils"])
        engine_start["get_mp_context"] = partial(multiprocessing.get_context, "fork")
    gc.freeze()
    sys.argv = _serve()
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    _main()
