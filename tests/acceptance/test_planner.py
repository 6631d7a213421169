"""`xylem up --planner` under a load that rises and falls: workers come and go, and no request notices."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from redis import Redis

from tests.stack import BIN, free_port, stop, valkey, wait_until

pytestmark = pytest.mark.timeout(600)

POOL = "decode-pool-a"
TOKENS = 40  # 2 s of an engine that runs eight requests at once: four requests a second
POOLS: dict[str, Any] = {
    "pools": {
        POOL: {
            "model": "mock",
            "engine": "mock",
            "max_running": 8,
            "scale": {"least": 1, "most": 3},
            "args": {"step_ms": 50.0, "answer_tokens": TOKENS},
        }
    },
    "planner": {"objectives": {"mock": {"ttft_s": 2.0, "itl_s": 0.3, "share": 0.99}}},
}


class System:
    """`xylem up`, with a planner or without."""

    def __init__(self, home: Path, redis_url: str, *options: str) -> None:
        self.redis: Any = Redis.from_url(redis_url)
        self.port, self.output, self.redis_url = free_port(), home / "output", redis_url
        pools = home / "pools.yaml"
        pools.write_text(yaml.safe_dump(POOLS))
        self.env = {
            **os.environ, "XYLEM_HOME": str(home), "XYLEM_REDIS_URL": redis_url, "XYLEM_POOLS_FILE": str(pools),
        }  # fmt: skip
        argv = [BIN / "xylem", "up", "--pools", pools, "--port", str(self.port), *options]
        with self.output.open("wb") as sink:
            self.process = subprocess.Popen(
                [*argv, "--flower-port", str(free_port())], env=self.env, stdout=sink, stderr=subprocess.STDOUT
            )

    def wait_ready(self) -> None:
        wait_until(lambda: "curl -N" in self.output.read_text(), "the curl line", 120)

    def workers(self) -> int:
        """Number of workers that are ready."""
        answer = httpx.get(f"http://127.0.0.1:{self.port}/ready", trust_env=False).json()
        return int(answer["workers"].get("mock", 0))

    def desired(self) -> dict[str, Any]:
        raw = self.redis.get(f"xylem:desired:{POOL}")
        return {} if raw is None else json.loads(raw)

    def metrics(self) -> str:
        return httpx.get(f"http://127.0.0.1:{self.port}/metrics", trust_env=False).text

    @contextmanager
    def planner(self, *options: str) -> Iterator["subprocess.Popen[bytes]"]:
        """One more, beside what `xylem up` runs."""
        process = subprocess.Popen([BIN / "xylem", "planner", "--interval", "1", *options], env=self.env)
        try:
            yield process
        finally:
            stop(process)


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    with valkey(tmp_path / "valkey") as url:
        yield url


@contextmanager
def running(home: Path, redis_url: str, *options: str) -> Iterator[System]:
    system = System(home, redis_url, *options)
    try:
        system.wait_ready()
        yield system
    finally:
        stop(system.process, signal.SIGINT, 60)


async def _ask(client: httpx.AsyncClient, number: int) -> int:
    """The tokens of a streamed answer. Raises, unless it is whole."""
    body = {
        "model": "mock", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": TOKENS,
        "messages": [{"role": "user", "content": f"number {number}"}],
    }  # fmt: skip
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200, await answer.aread()
        lines = [line.removeprefix("data: ") async for line in answer.aiter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", lines[-1]
    return int(json.loads(lines[-2])["usage"]["completion_tokens"])


async def _load(system: System, per_s: float, until: Callable[[], bool], within_s: float) -> list[int]:
    """Asks so often until the condition holds; the tokens of each answer."""
    limits = httpx.Limits(max_connections=None)
    url = f"http://127.0.0.1:{system.port}"
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits, trust_env=False) as client:
        tasks: list[asyncio.Task[int]] = []
        try:
            async with asyncio.timeout(within_s):
                while not await asyncio.to_thread(until):
                    tasks.append(asyncio.create_task(_ask(client, len(tasks))))
                    await asyncio.sleep(1 / per_s)
        except TimeoutError:
            raise AssertionError(f"not within {within_s:g} s: {system.desired()}, {system.workers()} workers") from None
        return await asyncio.gather(*tasks)


async def test_workers_come_and_go_with_the_load_and_no_request_is_lost(tmp_path: Path, redis_url: str) -> None:
    """Each answer is whole: of those on a worker that is drained, too."""
    with running(tmp_path, redis_url, "--planner") as system:
        assert system.workers() == 1
        tokens = await _load(system, 10, lambda: system.workers() >= 3, 150)
        tokens += await _load(system, 0.5, lambda: system.workers() <= 1, 400)
        assert set(tokens) == {TOKENS}
        assert system.output.read_text().count("is to end") >= 2
        assert "giving up" not in system.output.read_text()


async def test_advice_starts_nothing_and_the_next_planner_goes_on_where_a_killed_one_was(
    tmp_path: Path, redis_url: str
) -> None:
    """The next planner knows the traffic that the first one has seen."""
    with running(tmp_path, redis_url) as system, ExitStack() as ends:
        assert "no planner runs" in _status(system)
        first = ends.enter_context(system.planner())
        leader = wait_until(lambda: system.redis.get("xylem:planner-leader"), "the first one leads", 60)
        with system.planner("--scaler", "kubernetes"):  # whose rights only one that acts needs
            tokens = await _load(system, 10, lambda: system.desired().get("workers", 0) >= 3, 150)
            assert set(tokens) == {TOKENS}
            advice = system.desired()
            assert (advice["act"], system.workers()) == (False, 1)
            assert system.redis.get("xylem:planner-leader") == leader
            first.kill()
            wait_until(lambda: system.redis.get("xylem:planner-leader") not in (None, leader), "another one leads", 60)
            wait_until(lambda: system.desired()["at"] > advice["at"] + 2, "it plans", 60)
            assert system.redis.hlen("xylem:traffic-of:mock:10") >= 2
            assert system.workers() == 1
            _shows_status(system)


def _shows_status(system: System) -> None:
    (row,) = (line.split() for line in _status(system).splitlines() if POOL in line)
    assert row[1] == "1"
    assert int(row[2]) == system.desired()["workers"]
    assert row[-1] == "advise"


def _status(system: System) -> str:
    command = [BIN / "xylem", "planner", "status"]
    return subprocess.run(command, env=system.env, capture_output=True, text=True, check=True).stdout
