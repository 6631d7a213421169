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
from tempfile import TemporaryDirectory
from typing import IO, Any, ClassVar

import orjson

_IMPORTED = (
    "app.api.main", "app.api.http.uvicorn_protocol", "app.cli.main", "app.engines.mock.engine", "app.runner.runner",
    "celery.__main__", "celery.apps.worker", "celery.bin.celery", "celery.bin.worker", "celery.concurrency.thread",
    "kombu.transport.redis", "uvicorn", "uvloop", "workers.engine.kv_event_feed", "workers.engine.hang_watchdog",
)  # fmt: skip
# What the engines' own processes import is here too: they are forked as well, where engines spawn them.
ENGINES = {
    "sglang": (
        "app.engines.sglang", "sglang.srt.managers.scheduler", "sglang.srt.managers.data_parallel_controller",
        "sglang.srt.managers.detokenizer_manager", "sglang.srt.models.registry",
        "sglang.srt.disaggregation.encoder.server",
    ),
    "vllm": (
        "app.engines.vllm.engine", "app.engines.vllm.one_process", "vllm.v1.engine.core",
        "vllm.v1.worker.cpu_worker", "vllm.model_executor.models.llama",
        "vllm.model_executor.layers.quantization.online.base", "ops.models.noise",
    ),
}  # fmt: skip
# What benchmarks import, but none of their own modules: some choose ports at random when they are imported.
BENCH = (
    "httpx", "matplotlib.backends.backend_agg", "matplotlib.figure", "numpy", "redis", "rich.progress", "rich.table",
)  # fmt: skip
# What the engines' adapters set of it, for torch, and what SGLang itself reads.
READ_AT_IMPORT = {
    "sglang": {"SGLANG_RETURN_ORIGINAL_LOGPROB": "1", "TORCH_COMPILE_DISABLE": "1", "OMP_NUM_THREADS": "1"},
    "vllm": {"TORCH_COMPILE_DISABLE": "1"},
}


class Forked(subprocess.Popen[bytes]):
    """A forked process that seems a child of ours: one that has ended is there until somebody asks."""

    def __init__(
        self, args: list[str], cwd: Path, env: dict[str, str], log: Path, *, errors: Path | None = None,
        engine: str = "mock", serves: bool = False,
    ) -> None:  # fmt: skip
        """`errors`: for stderr, if not the log. `engine`: which it is going to import.

        `serves`: what it forks itself takes no imports either.
        """
        self.args, self.returncode = args, None
        self._server = _server(engine if engine in (*ENGINES, "bench") else "mock")
        logs = str(log), str(errors or log)
        self.pid = self._server.ask({"args": args, "cwd": str(cwd), "env": env, "logs": logs, "serves": serves})

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


def run(args: list[str], cwd: Path, env: dict[str, str], timeout_s: float = 60) -> "subprocess.CompletedProcess[str]":
    """The outcome of a command, of whose seconds most would be imports. Raises: subprocess.TimeoutExpired."""
    with TemporaryDirectory() as folder:
        output, errors = Path(folder, "out"), Path(folder, "err")
        output.touch()
        errors.touch()
        process = Forked(args, cwd, env, output, errors=errors)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(args, code, output.read_text(), errors.read_text())


class _Server:
    _processes: ClassVar[list["subprocess.Popen[bytes]"]] = []  # as long as this one, as they end with it

    def __init__(self, questions: IO[bytes], answers: IO[bytes]) -> None:
        self._questions, self._answers = questions, answers
        self._lock = threading.Lock()

    @classmethod
    def started(cls, engine: str) -> "_Server":
        # In a session of its own, so that it hears no Ctrl-C; it ends, with all its forks, when its input does.
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, engine],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            # numpy starts no threads when it is imported
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"} | READ_AT_IMPORT.get(engine, {}),
        )
        assert process.stdin is not None
        assert process.stdout is not None
        cls._processes.append(process)
        return cls(process.stdin, process.stdout)

    def ask(self, what: dict[str, Any] | int) -> Any:
        with self._lock:
            self._questions.write(orjson.dumps(what) + b"\n")
            self._questions.flush()
            return orjson.loads(self._answers.readline())


own_server: _Server | None = None  # of a fork that `serves`


@cache
def _server(engine: str) -> _Server:
    return own_server if own_server is not None and engine == "mock" else _Server.started(engine)


def _serve() -> list[str]:
    """Returns in each fork: what it is to run."""
    children: set[int] = set()
    while line := sys.stdin.buffer.readline():
        message, answer = orjson.loads(line), None
        if isinstance(message, dict):
            answer = os.fork()
            if not answer:
                return _become(**message)
            children.add(answer)
        else:
            pid, status = os.waitpid(message, os.WNOHANG)
            children.discard(pid)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        os.write(1, orjson.dumps(answer) + b"\n")
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    sys.exit()


def _begin_own_server() -> list[str] | None:
    """Forks a server for this process; returns None here, and in each fork of that server what it is to run."""
    questions, answers = os.pipe(), os.pipe()
    if not os.fork():
        os.dup2(questions[0], 0)
        os.dup2(answers[1], 1)
        for fd in (*questions, *answers):
            os.close(fd)
        return _serve()
    os.close(questions[0])
    os.close(answers[1])
    ends = open(questions[1], "wb"), open(answers[0], "rb")  # noqa: PTH123, SIM115 (as long as this process)
    vars(import_module("tests.forks"))["own_server"] = _Server(*ends)
    return None


def _become(args: list[str], cwd: str, env: dict[str, str], logs: tuple[str, str], serves: bool) -> list[str]:
    os.setsid()
    if serves and (fork := _begin_own_server()) is not None:
        return fork
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    if "torch" in sys.modules and "OMP_NUM_THREADS" in env:  # which OpenMP read when it was imported
        sys.modules["torch"].set_num_threads(int(env["OMP_NUM_THREADS"]))
    for fd, path in enumerate((os.devnull, *logs)):
        new_fd = os.open(path, os.O_RDWR | os.O_APPEND)
        os.dup2(new_fd, fd)
        os.close(new_fd)
    return args


def keep_imports() -> None:
    """Has no collection look through what is there now: vLLM's take a second as it starts, and one as it ends."""
    gc.freeze()
    gc.unfreeze = lambda: None  # type: ignore[assignment]


def _main() -> None:
    engine = sys.argv[1]
    for name in (*_IMPORTED, *ENGINES.get(engine, ()), *(BENCH if engine == "bench" else ())):
        import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208 (a folder of the kernel)
    if engine == "sglang":
        multiprocessing.set_start_method = lambda *_, **__: None  # type: ignore[assignment]  # which is to fork
    elif engine == "vllm":
        # A core is a fork of what has imported it, and loads in 5 s instead of 20.
        engine_start = vars(sys.modules["vllm.v1.engine.utils"])
        engine_start["get_mp_context"] = partial(multiprocessing.get_context, "fork")
        # What it wants to know of a model's class it asks, for CUDA's sake, in a process that imports all of vLLM.
        vars(sys.modules["vllm.model_executor.models.registry"])["_run_in_subprocess"] = lambda inspect: inspect()
    keep_imports()
    sys.argv = _serve()
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    _main()
