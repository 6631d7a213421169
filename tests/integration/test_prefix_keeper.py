"""A worker that keeps prefixes beside its requests: on a mock engine and a real Redis, without Celery."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog
from redis import Redis

from app.engines.base import EngineStats, GenerateRequest
from app.ids import PrefixId, RunId, WorkerId
from app.keys import Keys
from app.messages.job import Sampling
from app.messages.wanted import Prefix
from app.messages.wire import encode
from app.pools.schema import Pool
from app.runner.engine_factory import create_engine
from app.runner.runner import Runner
from app.running.ending import end_tasks
from app.settings import Settings
from tests.background import until
from tests.integration.conftest import POOL
from workers.engine.lease import LeaseKeeper
from workers.engine.prefix_keeper import PrefixKeeper

KEYS, NAME = Keys("test"), WorkerId("w1")
PART = 2048  # tokens


class Keeping:
    """A worker without its tasks. Its keeper looks once it is told to."""

    def __init__(self, redis: "Redis", runner: Runner) -> None:
        self.redis, self.runner = redis, runner
        info = runner.load()
        self.lease, self.keeper = runner.call(self._made(info))

    async def _made(self, info: Any) -> tuple[LeaseKeeper, PrefixKeeper]:
        lease = LeaseKeeper(self.runner, POOL, Pool(model="m", engine="mock"), info, prefixes=True)
        await lease.register()
        return lease, PrefixKeeper(self.runner, lease, POOL, None)

    def has(self, name: str, tokens: list[int]) -> None:
        one = Prefix(PrefixId(name), "mock", tokens, 0.0, 2e9)
        self.redis.hset(KEYS.prefixes(POOL), one.id, encode(one))

    @property
    def stats(self) -> EngineStats:
        return self.runner.engine.stats()


@contextmanager
def keeping(url: str, **args: Any) -> Iterator[Keeping]:
    redis = Redis.from_url(url)
    redis.flushall()
    pool = Pool(model="mock", engine="mock", max_model_len=16_384, args={"step_ms": 1.0, **args})
    runner = Runner(create_engine(pool), NAME, POOL, Settings(redis_url=url, deployment="test"))
    instance = Keeping(redis, runner)
    try:
        yield instance
    finally:
        runner.call(instance.lease.end())
        runner.close()
        redis.close()


def test_a_request_that_comes_waits_for_a_part_of_a_long_prefix_only(store_url: str) -> None:
    with keeping(store_url, max_batched_tokens=PART, prefill_tokens_per_s=40_000) as worker:
        worker.has("long", [i % 900 for i in range(6 * PART)])

        async def beside() -> int:
            """Tokens that were computed until a request had its first one."""
            keeper_task = asyncio.create_task(worker.keeper.run())
            await until(lambda: worker.stats.running > 0)
            before, most = worker.stats.prefill_tokens, 0
            request = GenerateRequest(RunId("online.0"), [7] * 40, Sampling(max_tokens=1))
            async for _ in worker.runner.engine.generate(request):
                most = worker.stats.prefill_tokens - before
            await until(lambda: worker.stats.prefill_tokens >= 6 * PART)
            await end_tasks([keeper_task])
            return most

        assert worker.runner.call(beside()) <= 2 * PART  # the part under way, and what fits beside the request


def test_while_it_rests_the_engine_has_nothing_of_it(store_url: str) -> None:
    """A long prefix begins again afterwards."""
    with keeping(store_url, prefill_tokens_per_s=500.0) as worker:
        worker.has("slow", [1] * 1000)

        async def rests() -> None:
            keeper_task = asyncio.create_task(worker.keeper.run())
            await until(lambda: worker.stats.running > 0)
            async with worker.keeper.resting():
                assert (worker.stats.running, worker.stats.waiting, worker.stats.used_blocks) == (0, 0, 0)
            await until(lambda: worker.stats.running + worker.stats.waiting > 0)
            await end_tasks([keeper_task])
            await until(lambda: worker.stats.running + worker.stats.waiting == 0)

        worker.runner.call(rests())


def test_a_prefix_that_the_engine_refuses_stops_neither_the_others_nor_the_worker(store_url: str) -> None:
    with keeping(store_url) as worker, structlog.testing.capture_logs() as logs:
        worker.has("0-refused", [10**6] * 64)
        worker.has("1-good", [3] * 640)

        async def goes_on() -> None:
            keeper_task = asyncio.create_task(worker.keeper.run())
            await until(lambda: worker.stats.prefill_tokens >= 640)
            assert not keeper_task.done()
            await end_tasks([keeper_task])

        worker.runner.call(goes_on())
    (log_line,) = (line for line in logs if line["event"] == "prefix_not_computed")
    assert log_line["prefix"] == "0-refused"
    assert "1000000" not in str(logs)
