"""What an API key's limits let pass of its batches' lines, over a real Redis."""

import asyncio
import time
from typing import Any
from unittest.mock import MagicMock

import pytest
from app.dispatch.quota import Quota
from redis.asyncio import Redis
from workers.batch.line_quota import LineQuota, expected

from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.models import Model
from app.ids import KeyId
from app.keys import Keys
from app.messages import Sampling
from app.store import Wire
from app.tenants.records import ApiKey, Rate

pytestmark = pytest.mark.both_servers

KEYS = Keys("limits")


def line(wire: Wire, rate: Rate | None, turn: asyncio.Lock, answer: int = 0) -> LineQuota:
    assert rate is not None
    return LineQuota(wire, KEYS, rate, turn, answer)


def key(**limits: Any) -> ApiKey:
    return ApiKey("alice", b"", 0.0, id=KeyId("key_1"), **limits)


async def left(redis: "Redis", of: str, account: str = "key_1") -> float:
    return float(await redis.hget(KEYS.spent(account), of) or "nan")


async def passed(tasks: "list[asyncio.Task[None]]", least: int = 0) -> int:
    """Of them, at least so many, when the others wait."""
    while sum(task.done() for task in tasks) < least:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.5)
    return sum(task.done() for task in tasks)


async def test_lines_over_the_limit_wait_and_leave_half_of_it_to_online_requests(redis: "Redis", wire: Wire) -> None:
    """All processes of a key draw on one account; when there is more, all lines pass, and none fails."""
    limits, began = key(requests_per_min=10), time.monotonic()
    turns = asyncio.Lock(), asyncio.Lock()  # of two batch workers
    tasks = [asyncio.create_task(line(wire, limits.batch_rate, turns[i % 2]).admit(1)) for i in range(12)]
    # From ten down to four: with less than five left none passes, until there is more.
    assert 6 <= await passed(tasks, 6) <= 6 + (time.monotonic() - began) * 10 / 60
    rate = limits.rate
    assert rate is not None
    for _ in range(4):
        await Quota(wire, KEYS, rate).admit(1)
    while not all(task.done() for task in tasks):
        await redis.delete(KEYS.spent("key_1"))
        await asyncio.sleep(0.05)
    await asyncio.gather(*tasks)


async def test_batches_with_limits_of_their_own_leave_the_others_as_they_are(redis: "Redis", wire: Wire) -> None:
    limits = key(requests_per_min=5, tokens_per_min=1000, batch_requests_per_min=3)
    began = time.monotonic()
    tasks = [asyncio.create_task(line(wire, limits.batch_rate, asyncio.Lock(), 50).admit(500)) for _ in range(5)]
    assert 3 <= await passed(tasks, 3) <= 3 + (time.monotonic() - began) * 3 / 60
    assert not await redis.exists(KEYS.spent("key_1"))
    assert await redis.exists(KEYS.spent("key_1:batch"))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_many_waiting_lines_ask_redis_as_often_as_one(redis: "Redis", wire: Wire) -> None:
    asked: list[int] = []
    for lines in (1, 500):
        rate, turn, count = Rate(f"of-{lines}", requests=1), asyncio.Lock(), 0
        await line(wire, rate, turn).admit(1)
        real = wire.execute

        async def counted(commands: Any, real: Any = real) -> Any:
            nonlocal count
            count += 1
            return await real(commands)

        wire.execute = counted  # type: ignore[method-assign]
        tasks = [asyncio.create_task(line(wire, rate, turn).admit(1)) for _ in range(lines)]
        assert await passed(tasks) == 0
        wire.execute = real  # type: ignore[method-assign]
        asked.append(count)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert asked[1] <= asked[0] + 3


async def test_a_lines_expected_tokens_are_charged_first_and_corrected_by_its_answer(
    redis: "Redis", wire: Wire
) -> None:
    """Asked again, because a worker went, a line is charged once."""
    rate, turn = key(tokens_per_min=600).batch_rate, asyncio.Lock()  # so few that what is charged stays to be seen
    one = line(wire, rate, turn, 256)
    for _ in range(2):
        await one.admit(100)
    assert await left(redis, "tokens") == 600 - 356
    await one.spend(0)  # given back, for it was not answered
    assert await left(redis, "tokens") >= 600 - 100
    await one.admit(100)
    before = await left(redis, "tokens")
    await one.spend(3000)
    assert before - 3000 <= await left(redis, "tokens") < before


async def test_lines_of_many_tokens_are_not_all_admitted_before_the_first_answer(redis: "Redis", wire: Wire) -> None:
    """Their answers together would be a debt that online requests of the key wait for."""
    rate, turn, began = key(tokens_per_min=1000).batch_rate, asyncio.Lock(), time.monotonic()
    tasks = [asyncio.create_task(line(wire, rate, turn, 256).admit(2)) for _ in range(50)]
    assert 2 <= await passed(tasks, 2) <= 2 + (time.monotonic() - began) * 1000 / 60 / 258
    assert await left(redis, "tokens") > 0
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_what_an_answer_may_get_is_what_routing_expects() -> None:
    """Most lines name no limit, and would reserve the whole context."""
    sampling = [Sampling(10, n=2), Sampling(100_000)]
    assert expected(GenerationPlan("cmpl-", MagicMock(Model), [[1], [2]], sampling, timeout_s=1)) == 276
