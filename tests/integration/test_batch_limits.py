"""Tests what the limits of an API key and its tenant let pass of their batches' lines, over a real Redis."""

import asyncio
import time
from typing import Any
from unittest.mock import MagicMock

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from app.batch.records import BatchOrder
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.models.models import Model
from app.errors import BudgetUsed, StoreDown
from app.ids import ApiId, BatchId, FileId, KeyId, RequestId, TenantId, new_request_id
from app.keys import Keys
from app.messages.job import Sampling
from app.messages.wire import encode
from app.store import Wire, clock
from app.tenants.charge import Charge
from app.tenants.cost import Used
from app.tenants.directory import Directory
from app.tenants.ledger import Ledger, spent
from app.tenants.limit_table import Budget, TenantLimits
from app.tenants.rates_and_budgets import of_key, of_line
from app.tenants.records import ApiKey, Client, Rate, Tenant
from workers.batch.line_charge import LineCharge, expected
from workers.batch.line_limits import LineLimits

pytestmark = pytest.mark.both_servers

KEYS = Keys("limits")
API = ApiId("aaaaaaaa")


def ledger(wire: Wire) -> Ledger:
    return Ledger(wire, KEYS, API, Directory(wire, KEYS))


def client(key: TenantLimits = TenantLimits(), team: TenantLimits = TenantLimits()) -> Client:  # noqa: B008 (frozen)
    return Client(Tenant(TenantId("red"), limits=team), KeyId("key_1"), "alice", key)


class Line:
    def __init__(
        self, wire: Wire, of: Client, lock: asyncio.Lock, answer: int = 0, name: str = "", worker: ApiId = API
    ) -> None:
        self.id = new_request_id("cmpl-", worker)
        book = Ledger(wire, KEYS, worker, Directory(wire, KEYS))
        self.charge = LineCharge(book, lambda: of_line(of), lock, answer, RequestId(name) if name else self.id)

    async def admit(self, prompt: int = 1) -> None:
        await self.charge.admit(self.id, Used("m", prompt), clock.now() + 60)


async def left(redis: "Redis", of: str, account: str = "key_1") -> float:
    return float(await redis.hget(KEYS.spent(account), of) or "nan")


async def passed(tasks: "list[asyncio.Task[None]]", least: int = 0) -> int:
    """Number of tasks that are done, at least so many, when the others wait."""
    while sum(task.done() for task in tasks) < least:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.5)
    return sum(task.done() for task in tasks)


async def end(tasks: "list[asyncio.Task[None]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("owner", ["key_1", "tenant/red"])
async def test_lines_over_the_limit_wait_and_leave_half_of_it_to_online_requests(
    redis: "Redis", wire: Wire, owner: str
) -> None:
    """All processes draw on one account; when there is more, all lines pass, and none fails."""
    limits, began = TenantLimits(requests_per_min=10), time.monotonic()
    one = client(limits) if owner == "key_1" else client(team=limits)
    turns = asyncio.Lock(), asyncio.Lock()  # of two batch workers
    tasks = [asyncio.create_task(Line(wire, one, turns[i % 2]).admit()) for i in range(12)]
    # From ten down to four: with less than five left none passes, until there is more.
    assert 6 <= await passed(tasks, 6) <= 6 + (time.monotonic() - began) * 10 / 60
    for i in range(4):
        online = Charge.of(ledger(wire), one)
        assert online is not None
        await online.admit(RequestId(f"r{i}"), Used("m", 1), clock.now() + 60)
    while not all(task.done() for task in tasks):
        await redis.delete(KEYS.spent(owner))
        await asyncio.sleep(0.05)
    await asyncio.gather(*tasks)


async def test_batches_with_limits_of_their_own_leave_the_others_as_they_are(redis: "Redis", wire: Wire) -> None:
    one = client(TenantLimits(requests_per_min=5, tokens_per_min=1000, batch_requests_per_min=3))
    began = time.monotonic()
    tasks = [asyncio.create_task(Line(wire, one, asyncio.Lock(), 50).admit(500)) for _ in range(5)]
    assert 3 <= await passed(tasks, 3) <= 3 + (time.monotonic() - began) * 3 / 60
    assert not await redis.exists(KEYS.spent("key_1"))
    assert await redis.exists(KEYS.spent("key_1:batch"))
    await end(tasks)


async def test_many_waiting_lines_ask_redis_as_often_as_one(redis: "Redis", wire: Wire) -> None:
    counts: list[int] = []
    for lines in (1, 500):
        await redis.flushall()
        one, turn, count = client(TenantLimits(batch_requests_per_min=1)), asyncio.Lock(), 0
        await Line(wire, one, turn).admit()
        real = wire.execute_each

        async def counted(commands: Any, real: Any = real) -> Any:
            nonlocal count
            count += 1
            return await real(commands)

        wire.execute_each = counted  # type: ignore[method-assign]
        tasks = [asyncio.create_task(Line(wire, one, turn).admit()) for _ in range(lines)]
        assert await passed(tasks) == 0
        wire.execute_each = real  # type: ignore[method-assign]
        counts.append(count)
        await end(tasks)
    assert counts[1] <= counts[0] + 3


async def test_a_lines_expected_tokens_are_charged_first_and_corrected_by_its_answer(
    redis: "Redis", wire: Wire
) -> None:
    """Rates and budgets are charged so. A line that is asked again, because a worker went, is charged once."""
    one = client(
        TenantLimits(tokens_per_min=600, budget=Budget(10_000))
    )  # so few that what is charged stays to be seen
    first, again = (Line(wire, one, asyncio.Lock(), 256) for _ in range(2))
    await first.admit(100)
    assert await left(redis, "tokens") == 600 - 356
    await first.charge.settle(None)  # all is given back, for no worker had it
    (has,) = await spent(wire, KEYS, [of_key(one)])
    assert (has.tokens, has.spent) == (600, 0)
    await again.admit(100)
    (has,) = await spent(wire, KEYS, [of_key(one)])
    assert has.spent == 356
    await again.charge.settle(Used("m", 100, completion=3000))
    assert -2500 <= await left(redis, "tokens") < -2480
    (has,) = await spent(wire, KEYS, [of_key(one)])
    assert has.spent == 3100


async def test_a_try_that_no_worker_had_gives_its_request_back(redis: "Redis", wire: Wire) -> None:
    """A line that tries for hours while workers are away so uses up nothing."""
    one = client(TenantLimits(batch_requests_per_min=2))
    for _ in range(5):
        line = Line(wire, one, asyncio.Lock())
        await asyncio.wait_for(line.admit(), 5)
        await line.charge.settle(None)


async def test_lines_of_many_tokens_are_not_all_admitted_before_the_first_answer(redis: "Redis", wire: Wire) -> None:
    """Their answers together would be a debt that online requests of the key wait for."""
    one, turn, began = client(TenantLimits(tokens_per_min=1000)), asyncio.Lock(), time.monotonic()
    tasks = [asyncio.create_task(Line(wire, one, turn, 256).admit(2)) for _ in range(50)]
    assert 2 <= await passed(tasks, 2) <= 2 + (time.monotonic() - began) * 1000 / 60 / 258
    assert await left(redis, "tokens") > 0
    await end(tasks)


async def test_lines_of_a_tenant_without_budget_are_tried_again_in_the_next_period(
    redis: "Redis", wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More budget has them tried again too.

    They don't wait here for as long: their part would keep others from the batch worker.
    """
    one, turn, now = client(team=TenantLimits(budget=Budget(100, "tokens", "day"))), asyncio.Lock(), clock.now()
    await Line(wire, one, turn).admit(100)
    line = Line(wire, one, turn)
    for _ in range(2):
        with pytest.raises(BudgetUsed, match="The tenant 'red' has spent 100 of its budget"):
            await asyncio.wait_for(line.admit(100), 10)
    monkeypatch.setattr("app.tenants.ledger.clock.now", lambda: now + 86_400)
    await asyncio.wait_for(line.admit(100), 10)


async def test_lines_do_not_wait_for_a_budget_that_an_online_request_reserves(redis: "Redis", wire: Wire) -> None:
    """The online request may run for hours."""
    one = client(TenantLimits(budget=Budget(100)))
    online = Charge.of(ledger(wire), one)
    assert online is not None
    await online.admit(RequestId("r"), Used("m", 1), clock.now() + 60, 99)
    line = Line(wire, one, asyncio.Lock())
    with pytest.raises(BudgetUsed, match="the answers that are being made"):
        await asyncio.wait_for(line.admit(), 10)
    await online.settle(Used("m", 1, completion=5))
    await asyncio.wait_for(line.admit(), 10)


async def test_a_line_cancelled_while_redis_is_asked_holds_nothing(redis: "Redis", wire: Wire) -> None:
    """Its part is given up, for example."""
    one, real = client(TenantLimits(batch_requests_per_min=5, budget=Budget(100))), wire.execute_each
    line = Line(wire, one, asyncio.Lock())
    was_sent = asyncio.Event()

    async def slow(commands: Any) -> Any:
        replies = await real(commands)
        was_sent.set()
        await asyncio.sleep(60)
        return replies

    wire.execute_each = slow  # type: ignore[method-assign]
    task = asyncio.create_task(line.admit(50))
    await was_sent.wait()
    await end([task])
    wire.execute_each = real  # type: ignore[method-assign]
    await line.charge._ledger.settle_rest()
    assert await redis.hget(KEYS.budget("key_1"), "spent") == b"0"


def order(rate: Rate | None = None) -> BatchOrder:
    ids = BatchId("batch_1"), KeyId("key_1"), "/v1/completions", FileId("file-1"), "24h"
    return BatchOrder(*ids, 0, 0, rate=rate, tenant=TenantId("red"))


async def test_lines_have_the_limits_of_today_and_a_revoked_keys_those_it_had(redis: "Redis", wire: Wire) -> None:
    """Limits of the key and of its tenant, as Redis has them; the order remembers only the key's."""
    plan = GenerationPlan("cmpl-", MagicMock(Model), [[1]], [Sampling(1)], timeout_s=1)
    record = ApiKey("alice", b"12345678", 0.0, id=KeyId("key_1"), tenant=TenantId("red"), batch_requests_per_min=7)
    team = Tenant(TenantId("red"), limits=TenantLimits(budget=Budget(100)))
    await redis.hset(KEYS.api_keys(), "alice", encode(record))
    await redis.hset(KEYS.tenants(), "red", encode(team))
    book = ledger(wire)
    limits, old = LineLimits(book), order(Rate("key_1:batch", requests=5))
    await book.directory.refresh()
    assert limits.client(old).name == "alice"
    accounts = (await limits.of([old]))[old.id]
    assert [(one.requests, one.budget) for one, _ in accounts] == [(7, None), (0, Budget(100))]
    charge = limits.charge(old, plan, 1)
    assert charge is not None
    await charge.admit(RequestId("r"), Used("m", 30), clock.now() + 60)
    assert [has.spent for _, has in (await limits.of([old]))[old.id]] == [0, 31]
    await redis.hdel(KEYS.api_keys(), "alice")
    await book.directory.refresh()
    accounts = (await limits.of([old]))[old.id]
    assert [(one.rates, one.requests) for one, _ in accounts] == [("key_1:batch", 5), ("tenant/red", 0)]
    await redis.delete(KEYS.tenants())
    await book.directory.refresh()
    assert limits.charge(order(), plan, 1) is None


async def test_lines_may_ask_for_what_their_client_may_today_and_a_revoked_keys_for_no_more(
    redis: "Redis", wire: Wire
) -> None:
    record = ApiKey(
        "alice", b"12345678", 0.0, id=KeyId("key_1"), tenant=TenantId("red"), more=TenantLimits(max_tokens=9)
    )
    await redis.hset(KEYS.api_keys(), "alice", encode(record))
    await redis.hset(KEYS.tenants(), "red", encode(Tenant(TenantId("red"), limits=TenantLimits(models=["small"]))))
    book = ledger(wire)
    limits, old = LineLimits(book), replace(order(), within=TenantLimits(models=["large", "small"], max_tokens=5))
    await book.directory.refresh()
    assert limits.within(old) == TenantLimits(models=["small"], max_tokens=9)
    await redis.hdel(KEYS.api_keys(), "alice")
    await book.directory.refresh()
    assert limits.within(old) == TenantLimits(models=["small"], max_tokens=5)
    assert limits.within(replace(old, key=KeyId(""))) == old.within, "no keys are required"


@pytest.mark.parametrize("wakes", [False, True])
async def test_a_line_whose_batch_worker_died_is_charged_by_the_next_one_alone(
    redis: "Redis", wire: Wire, wakes: bool
) -> None:
    """The dead worker's charge counts on: each death once had the client pay for all lines in flight again.

    `wakes`: it only stood still, and ends its try later.
    """
    one, turn = client(TenantLimits(requests_per_min=10, budget=Budget(10_000))), asyncio.Lock()
    dead = Line(wire, one, turn, 256, "batch_1-7-0")
    await dead.admit(10)
    here = Line(wire, one, turn, 256, "batch_1-7-0", ApiId("bbbbbbbb"))
    await here.admit(10)
    assert await left(redis, "requests") < 9.5
    if wakes:
        await dead.charge.settle(Used("m", 10, completion=3), cut=True)
    await here.charge.settle(Used("m", 10, completion=40))
    assert float(await redis.hget(KEYS.budget("key_1"), "spent") or "nan") == 50
    assert await left(redis, "requests") > 8.9, "it is one request"
    assert not await redis.keys(KEYS.charged(RequestId("*")))


async def test_lines_that_nobody_answers_any_more_get_back_what_dead_workers_were_charged(
    redis: "Redis", wire: Wire
) -> None:
    """Their batch has ended. What others are charged stays."""
    plan = GenerationPlan("cmpl-", MagicMock(Model), [[1]], [Sampling(1)], timeout_s=1)
    record = ApiKey("alice", b"12345678", 0.0, id=KeyId("key_1"), tenant=TenantId("red"), batch_requests_per_min=10)
    await redis.hset(KEYS.api_keys(), "alice", encode(record))
    await redis.hset(KEYS.tenants(), "red", encode(Tenant(TenantId("red"), limits=TenantLimits(budget=Budget(10_000)))))
    dead, here = (Ledger(wire, KEYS, ApiId(name), Directory(wire, KEYS)) for name in ("aaaaaaaa", "bbbbbbbb"))
    for book in (dead, here):
        await book.directory.refresh()
    for number in (1, 2, 700):
        charge = LineLimits(dead).charge(order(), plan, number)
        assert charge is not None
        await charge.admit(RequestId("r"), Used("m", 30), clock.now() + 60)
    await LineLimits(here).give_back(order(), range(2, 900))
    assert float(await redis.hget(KEYS.budget("tenant/red"), "spent") or "nan") == 31
    assert await left(redis, "requests", "key_1:batch") > 8.9
    assert await redis.keys(KEYS.charged(RequestId("*"))) == [KEYS.charged(RequestId("batch_1-1")).encode()]
    await LineLimits(here).give_back(order(), [2])
    assert float(await redis.hget(KEYS.budget("tenant/red"), "spent") or "nan") == 31


async def test_without_redis_a_line_tries_again_later(redis: "Redis", wire: Wire) -> None:
    """The error is as if no worker were there: it is the part's runner that waits."""

    async def away(_: Any) -> Any:
        raise StoreDown

    wire.execute_each = away  # type: ignore[method-assign]
    with pytest.raises(StoreDown):
        await Line(wire, client(TenantLimits(requests_per_min=5)), asyncio.Lock()).admit()


def test_what_an_answer_may_get_is_what_routing_expects() -> None:
    """Most lines name no limit, and would reserve the whole context. An embedding has no answer."""
    sampling = [Sampling(10, n=2), Sampling(100_000)]
    plan = GenerationPlan("cmpl-", MagicMock(Model), [[1], [2]], sampling, timeout_s=1)
    assert expected(plan) == 276
    assert expected(GenerationPlan("x", MagicMock(Model), [[1]], sampling, timeout_s=1, generates=False)) == 0


async def test_a_batch_of_a_key_of_this_moment_has_its_name_and_its_limits(redis: "Redis", wire: Wire) -> None:
    """An API replica may know the key up to a second before the batch worker."""
    book = ledger(wire)
    limits, new = LineLimits(book), order()
    await book.directory.refresh()
    record = ApiKey("alice", b"12345678", 0.0, id=KeyId("key_1"), tenant=TenantId("red"), batch_requests_per_min=7)
    await redis.hset(KEYS.api_keys(), "alice", encode(record))
    await limits.known(new)
    assert limits.client(new).name == "alice"
    [(account, _balance)] = (await limits.of([new]))[new.id]
    assert account.requests == 7
