"""Tests what requests are charged, over a real Redis: accounts of keys and tenants that all processes share."""

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis

from app.errors import BudgetUsed, KeptFull, RateLimited, StoreDown
from app.ids import ApiId, KeyId, RequestId, TenantId, new_request_id
from app.keys import Keys
from app.store import StoreFull, Wire, async_client, clock
from app.tenants.admission import Admission
from app.tenants.charge import Charge, returned
from app.tenants.cost import Used
from app.tenants.directory import Directory
from app.tenants.ledger import Ledger, spent
from app.tenants.limit_table import UNLIMITED, Budget, TenantLimits
from app.tenants.rates_and_budgets import of_key, of_tenant
from app.tenants.records import Client, Price, Tenant
from app.tenants.registry import Registry
from tests.stack import free_port

pytestmark = pytest.mark.both_servers

KEYS = Keys("ledger")
ONE, TWO = ApiId("aaaaaaaa"), ApiId("bbbbbbbb")  # API replicas
MODEL = "m"


def client(
    key: TenantLimits = UNLIMITED, team: TenantLimits = UNLIMITED, name: str = "alice", of: str = "red"
) -> Client:
    return Client(Tenant(TenantId(of), limits=team), KeyId(name), name, key)


def ledger(wire: Wire, api: ApiId = ONE, prices: dict[str, Price] | None = None) -> Ledger:
    directory = Directory(wire, KEYS)
    directory.registry = Registry(prices=prices or {})
    return Ledger(wire, KEYS, api, directory)


class Asked:
    """A request of a client."""

    def __init__(self, book: Ledger, of: Client, *, outlives: bool = False, id_: RequestId | None = None) -> None:
        charge = Charge.of(book, of, outlives=outlives)
        assert charge is not None
        self.charge, self.id = charge, id_ or new_request_id("cmpl-", book.api)

    async def begin(self, prompt: int = 1, ends_in_s: float = 60, answer: int = 0, **used: Any) -> "Asked":
        await self.charge.admit(self.id, Used(MODEL, prompt, **used), clock.now() + ends_in_s, answer)
        return self

    async def end(self, prompt: int = 1, completion: int = 0, *, cut: bool = False, **used: Any) -> None:
        await self.charge.settle(Used(MODEL, prompt, completion=completion, **used), cut=cut)


async def admitted(book: Ledger, of: Client, prompt: int = 1, **used: Any) -> bool:
    try:
        await Asked(book, of).begin(prompt, **used)
    except (RateLimited, BudgetUsed):
        return False
    return True


def limited(rpm: int | None = None, tpm: int | None = None, **others: Any) -> TenantLimits:
    return TenantLimits(requests_per_min=rpm, tokens_per_min=tpm, **others)


def tokens_a_day(amount: float) -> TenantLimits:
    return TenantLimits(budget=Budget(amount, "tokens", "day"))


async def of_budget(redis: "Redis", account: str) -> float:
    return float(await redis.hget(KEYS.budget(account), "spent") or "nan")


async def test_no_more_requests_are_admitted_than_the_limit_says_however_many_come_at_once(
    redis: "Redis", wire: Wire
) -> None:
    """The limit holds over all replicas: here, two connections."""
    other = Wire(redis)
    results = await asyncio.gather(*(admitted(ledger(w), client(limited(rpm=7))) for w in (wire, other) * 20))
    other.close()
    assert sum(results) == 7


async def test_keys_of_a_tenant_share_its_limits_and_each_has_its_own(redis: "Redis", wire: Wire) -> None:
    """The other tenant's are others."""
    book, team = ledger(wire), limited(rpm=3)
    assert await admitted(book, client(limited(rpm=1), team))
    assert not await admitted(book, client(limited(rpm=1), team))
    assert await admitted(book, client(limited(rpm=9), team, "bob"))
    assert await admitted(book, client(team=team, name="carol"))
    assert not await admitted(book, client(limited(rpm=9), team, "bob"))
    assert await admitted(book, client(limited(rpm=9), team, "dave", "blue"))


async def test_who_is_refused_by_one_limit_is_charged_nothing_by_any(redis: "Redis", wire: Wire) -> None:
    """The limits of key and tenant are charged all or none."""
    team = limited(rpm=1000, tpm=1000, budget=Budget(1e6), parallel=9)
    one = client(limited(rpm=1), team)
    book = ledger(wire)
    assert await admitted(book, one, 10)
    accounts = [of_key(one), of_tenant(one.tenant)]
    before = await spent(wire, KEYS, accounts)
    for _ in range(5):
        assert not await admitted(book, one, 10)
    after = await spent(wire, KEYS, accounts)
    assert (after[1].spent, after[1].running) == (before[1].spent, before[1].running) == (10, 1)
    assert after[1].requests >= before[1].requests
    assert after[1].tokens >= before[1].tokens


async def test_a_refusal_says_whose_limit_is_used_up_and_when_there_is_more(redis: "Redis", wire: Wire) -> None:
    """The refusal is in OpenAI's words: type, code, Retry-After and the x-ratelimit headers."""
    book = ledger(wire)
    for one, owner in ((client(limited(rpm=2)), "This API key"), (client(team=limited(rpm=2)), "The tenant 'red'")):
        assert await admitted(book, one)
        assert await admitted(book, one)
        with pytest.raises(RateLimited, match=rf"^{owner} has used up its 2 requests a minute. Try again at 20") as no:
            await Asked(book, one).begin()
        error = no.value
        assert (error.status, error.type, error.code) == (429, "requests", "rate_limit_exceeded")
        assert error.retry_after_s in (29, 30)
        assert error.headers["x-ratelimit-limit-requests"] == "2"
        assert error.headers["x-ratelimit-remaining-requests"] == "0"
        assert 58 < float(error.headers["x-ratelimit-reset-requests"].removesuffix("s")) <= 60
        assert not [name for name in error.headers if name.endswith("tokens")]


async def test_headers_tell_of_the_tighter_limit(redis: "Redis", wire: Wire) -> None:
    """The headers tell the tighter of key and tenant, for clients that pace themselves."""
    one = await Asked(ledger(wire), client(limited(rpm=10, tpm=5000), limited(rpm=20, tpm=1000))).begin(40)
    headers = one.charge.headers()
    assert headers["x-ratelimit-limit-requests"] == "10"
    assert headers["x-ratelimit-remaining-requests"] == "9"
    assert headers["x-ratelimit-limit-tokens"] == "1000"
    assert headers["x-ratelimit-remaining-tokens"] == "960"
    assert headers["x-ratelimit-reset-tokens"] == "2.400s"


async def test_a_bucket_fills_evenly(redis: "Redis", wire: Wire) -> None:
    """600 a minute are one each 100 ms."""
    book, one = ledger(wire), client(limited(rpm=600))
    assert sum([await admitted(book, one) for _ in range(700)]) < 700
    await asyncio.sleep(0.35)
    assert 3 <= sum([await admitted(book, one) for _ in range(20)]) < 20


async def test_tokens_may_make_a_debt_that_later_requests_wait_for(redis: "Redis", wire: Wire) -> None:
    """The length of an answer is known when it has been given."""
    book, one = ledger(wire), client(limited(tpm=600))
    first = await Asked(book, one).begin(100)
    await first.end(100, 700)
    with pytest.raises(RateLimited, match="600 tokens a minute") as refusal:
        await Asked(book, one).begin()
    assert refusal.value.type == "tokens"
    assert refusal.value.retry_after_s in (20, 21)  # 201 tokens at 10 a second
    assert refusal.value.headers["x-ratelimit-remaining-tokens"] == "0"


async def test_a_prompt_over_the_limit_is_admitted_when_nothing_is_owed(redis: "Redis", wire: Wire) -> None:
    """Such a prompt would never be admitted otherwise."""
    book, one = ledger(wire), client(limited(tpm=100))
    assert await admitted(book, one, 5000)
    assert not await admitted(book, one, 1)


async def test_an_account_is_gone_when_it_would_be_full(redis: "Redis", wire: Wire) -> None:
    """Keys that are not used leave nothing behind."""
    first = await Asked(ledger(wire), client(limited(rpm=60))).begin()
    assert 900 < await redis.pttl(KEYS.spent("alice")) <= 1001
    await first.end()
    second = await Asked(ledger(wire), client(limited(rpm=60, tpm=60))).begin(0)
    await second.end(0, 120)
    assert 119_000 < await redis.pttl(KEYS.spent("alice")) <= 120_001
    assert await redis.keys("*charged*") == []


async def test_a_budget_is_of_prompts_and_answers_and_refuses_until_its_period_ends(redis: "Redis", wire: Wire) -> None:
    """The error is OpenAI's insufficient_quota, and says when the next period begins."""
    book, one = ledger(wire), client(team=tokens_a_day(100))
    first = await Asked(book, one).begin(30)
    assert await of_budget(redis, "tenant/red") == 30
    await first.end(30, 25)
    assert await of_budget(redis, "tenant/red") == 55
    second = await Asked(book, one).begin(45)
    await second.end(45, 1)
    with pytest.raises(BudgetUsed) as refusal:
        await Asked(book, one).begin(0)
    error = refusal.value
    assert (error.status, error.type, error.code) == (429, "insufficient_quota", "insufficient_quota")
    assert error.message.startswith(
        "The tenant 'red' has spent 101 of its budget of 100 tokens a day. The next day begins"
    )
    assert error.message.endswith("T00:00:00Z.")
    assert error.retry_after_s is not None
    assert 0 < error.retry_after_s <= 86_400
    assert await redis.pttl(KEYS.budget("tenant/red")) <= 86_400_000


async def test_money_is_of_cached_and_uncached_tokens_of_answers_and_of_pictures(redis: "Redis", wire: Wire) -> None:
    """The model's price for a million tokens counts.

    The prompt is charged as if nothing were cached, and corrected.
    """
    prices = {MODEL: Price(2.0, 0.5, 8.0, 0.04)}
    book, one = ledger(wire, prices=prices), client(TenantLimits(budget=Budget(1.0, "money", "month")))
    first = await Asked(book, one).begin(1000)
    assert await of_budget(redis, "alice") == pytest.approx(0.002)
    await first.end(1000, 100, cached=600)
    assert await of_budget(redis, "alice") == pytest.approx(400 * 2e-6 + 600 * 0.5e-6 + 100 * 8e-6)
    request = await Asked(book, one).begin(0, pictures=3)
    assert await of_budget(redis, "alice") == pytest.approx(0.0019 + 0.12)
    await request.end(0, pictures=2)
    assert await of_budget(redis, "alice") == pytest.approx(0.0019 + 0.08)
    free = Asked(book, one)
    await free.charge.admit(free.id, Used("unpriced", 10**9), clock.now() + 60)
    assert await of_budget(redis, "alice") == pytest.approx(0.0019 + 0.08)
    await Asked(book, one).begin(10**6)
    with pytest.raises(BudgetUsed, match=r"key has spent \$2\.0819 of its budget of \$1 a month"):
        await Asked(book, one).begin()


async def test_a_budget_of_another_unit_or_period_begins_anew(redis: "Redis", wire: Wire) -> None:
    """Its amount may change, and what is spent stays."""
    book = ledger(wire)
    assert await admitted(book, client(tokens_a_day(10)), 10)
    assert not await admitted(book, client(tokens_a_day(10)), 1)
    assert await admitted(book, client(tokens_a_day(11)), 1)
    assert await admitted(book, client(TenantLimits(budget=Budget(5, "tokens", "week"))), 5)
    assert await of_budget(redis, "alice") == 5


async def test_what_began_within_another_budget_neither_counts_in_the_new_one_nor_ends_it(
    redis: "Redis", wire: Wire
) -> None:
    book = ledger(wire, prices={MODEL: Price(input=1e6)})
    running = [await Asked(book, client(tokens_a_day(1000))).begin(10, answer=400) for _ in range(2)]
    new = client(TenantLimits(budget=Budget(100, "money", "day")))
    assert await admitted(book, new, 60), "800 tokens are no money"
    await running[0].end(10, 300)
    assert await of_budget(redis, "alice") == 60
    assert await admitted(book, new, 40)
    assert not await admitted(book, new, 1)
    await running[1].end(10, 300)
    assert not await admitted(book, new, 1)
    assert not await redis.keys("*reserved*")


async def test_a_new_period_begins_at_zero(redis: "Redis", wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose clock is behind charges to the period that has begun."""
    book, one, now = ledger(wire), client(tokens_a_day(10)), clock.now()
    running = await Asked(book, one).begin(8)
    monkeypatch.setattr("app.tenants.ledger.clock.now", lambda: now + 86_400)
    assert await admitted(book, one, 4)
    assert await of_budget(redis, "alice") == 4
    monkeypatch.undo()
    await running.end(8, 2)
    assert await of_budget(redis, "alice") == 6


async def test_a_budget_is_exceeded_by_one_answer_at_most_however_many_come_at_once(redis: "Redis", wire: Wire) -> None:
    """The bound holds over all replicas, whoever of key and tenant pays.

    The possible costs of answers are reserved until they have ended.
    """
    other = Wire(redis)
    for one in (client(tokens_a_day(1000)), client(team=tokens_a_day(1000))):
        await redis.flushall()
        for api in (ONE, TWO):
            await redis.set(KEYS.api(api), "1")
        books, spending, refusal_count = (ledger(wire), ledger(other, TWO)), 0, 0
        while True:
            requests = [Asked(books[i % 2], one) for i in range(12)]
            outcomes = await asyncio.gather(*(each.begin(10, answer=200) for each in requests), return_exceptions=True)
            running = [
                each for each, error in zip(requests, outcomes, strict=True) if not isinstance(error, BaseException)
            ]
            assert spending + 210 * (len(running) - 1) < 1000, "each but the last one fits"
            errors = [error for error in outcomes if isinstance(error, BaseException)]
            if not running:
                break
            for error in errors:
                assert isinstance(error, RateLimited)
                assert (error.code, error.type, error.retry_after_s) == ("rate_limit_exceeded", "tokens", 1)
                assert "of its budget of 1000 tokens a day, and the answers that are being made" in error.message
            refusal_count += len(errors)
            for each in running:
                await each.end(10, 150)
                spending += 160
        assert all(isinstance(error, BudgetUsed) for error in errors)
        assert 1000 <= spending < 1000 + 210
        assert refusal_count > 12
        assert not await redis.keys("*reserved*")
    other.close()


async def test_what_a_dead_replica_has_reserved_is_free_and_an_adopted_answers_is_not(
    redis: "Redis", wire: Wire
) -> None:
    """The replica's lost lease frees the one; the new owner keeps the other reserved until its answer has ended."""
    other = Wire(redis)
    here, there, one = ledger(wire), ledger(other, TWO), client(TenantLimits(budget=Budget(1000, "money")))
    for book in (here, there):
        book.directory.registry = Registry(prices={MODEL: Price(output=1e6)})
        await redis.set(KEYS.api(book.api), "1")
    await Asked(there, one).begin(answer=600)
    first_request = await Asked(there, one, outlives=True).begin(answer=600)
    assert not await admitted(here, one)
    await redis.delete(KEYS.api(TWO))
    adopted_request = Asked(here, one, outlives=True, id_=first_request.id)
    await adopted_request.charge.adopt(first_request.id)
    assert await admitted(here, one), "600 of 1000 are reserved"
    assert await redis.hgetall(KEYS.reserved("alice", "money")) == {ONE.encode(): b"600"}
    await Asked(here, one).begin(answer=500)
    with pytest.raises(RateLimited, match="answers that are being made"):
        await Asked(here, one).begin()
    await adopted_request.end(0, 600)
    assert await of_budget(redis, "alice") == 600
    other.close()


async def test_what_is_said_twice_counts_once(redis: "Redis", wire: Wire) -> None:
    """Nobody knows after a broken connection whether Redis has executed a command, so it is sent again."""
    real, book = wire.execute_each, ledger(wire)
    one = client(limited(rpm=10, parallel=5), limited(tpm=1000, budget=Budget(1000)))

    async def twice(commands: Any) -> Any:
        await real(commands)
        return await real(commands)

    wire.execute_each = twice  # type: ignore[method-assign]
    request = await Asked(book, one).begin(100)
    accounts = [of_key(one), of_tenant(one.tenant)]
    (key, team) = await spent(wire, KEYS, accounts)
    assert 9 <= key.requests < 9.5
    assert (key.running, team.spent) == (1, 100)
    await request.end(100, 50)
    (key, team) = await spent(wire, KEYS, accounts)
    assert (key.running, team.spent) == (0, 150)
    assert 850 <= team.tokens < 900


async def test_what_no_worker_had_costs_nothing_but_the_request(redis: "Redis", wire: Wire) -> None:
    """Every worker is full, for example."""
    book, one = ledger(wire), client(limited(rpm=10, tpm=1000, budget=Budget(1000), parallel=1))
    request = await Asked(book, one).begin(600)
    await request.charge.settle(None)
    (balance,) = await spent(wire, KEYS, [of_key(one)])
    assert (balance.tokens, balance.spent, balance.running) == (1000, 0, 0)
    assert balance.requests < 9.5


async def test_nothing_stays_of_what_was_refused_when_it_was_to_be_kept(redis: "Redis", wire: Wire) -> None:
    """Unless Redis may have kept it all the same: else each refusal would take room for a day."""
    of = client(TenantLimits(parallel=1))
    for error, record_count in ((KeptFull("full"), 0), (StoreFull(), 0), (StoreDown(), 1)):
        request = await Asked(ledger(wire), of, outlives=True).begin(5)
        with pytest.raises(type(error)):
            async with returned(request.charge):
                raise error
        assert await redis.exists(KEYS.charged(request.id)) == record_count


async def test_no_more_run_at_once_than_may_and_an_end_makes_room(redis: "Redis", wire: Wire) -> None:
    """The limit holds over all replicas."""
    other = Wire(redis)
    books, one = (ledger(wire), ledger(other, TWO)), client(team=TenantLimits(parallel=3))
    await redis.set(KEYS.api(ONE), "1")
    await redis.set(KEYS.api(TWO), "1")
    running = [await Asked(books[i % 2], one).begin() for i in range(3)]
    for book in books:
        with pytest.raises(RateLimited, match="The tenant 'red' may have 3 requests at once") as refusal:
            await Asked(book, one).begin()
        assert (refusal.value.code, refusal.value.retry_after_s) == ("rate_limit_exceeded", 1)
    await running[0].end()
    assert await admitted(books[1], one)
    assert not await admitted(books[0], one)
    other.close()


async def test_places_of_a_dead_replica_are_free_and_those_of_a_living_one_are_not(redis: "Redis", wire: Wire) -> None:
    """The places of a request whose deadline is over are free too."""
    other = Wire(redis)
    here, there, one = ledger(wire), ledger(other, TWO), client(TenantLimits(parallel=2))
    for api in (ONE, TWO):
        await redis.set(KEYS.api(api), "1")
    await Asked(here, one).begin()
    await Asked(there, one).begin()
    assert not await admitted(here, one)
    await redis.delete(KEYS.api(TWO))
    assert await admitted(here, one)
    assert not await admitted(here, one)
    late = client(TenantLimits(parallel=1), name="late")
    await Asked(here, late).begin(ends_in_s=-61)
    assert await admitted(here, late)
    other.close()


async def test_just_after_redis_was_away_a_missing_lease_frees_no_place(redis: "Redis", wire: Wire) -> None:
    """All leases have expired by then, of those who live as well."""
    there, one = ledger(wire, TWO), client(TenantLimits(parallel=1))
    await Asked(there, one).begin()
    unsteady = Wire(redis, steady_after_s=60)
    await unsteady.execute([("PING",)])
    unsteady.close()
    await unsteady.execute([("PING",)])  # it has connected again
    assert not await admitted(ledger(unsteady), one)
    assert await admitted(ledger(wire), one)
    unsteady.close()


async def test_an_adopted_answer_is_charged_once_and_has_its_place(redis: "Redis", wire: Wire) -> None:
    """Whether its first replica ended it, for another one, or was killed."""
    for was_ended in (True, False):
        await redis.flushall()
        await redis.set(KEYS.api(TWO), "1")
        one = client(limited(rpm=10, parallel=1, budget=Budget(1000)))
        first = await Asked(ledger(wire), one, outlives=True).begin(100)
        if was_ended:
            await first.end(100, 20, cut=True)
            assert await of_budget(redis, "alice") == 120
        second = Asked(ledger(wire, TWO), one, outlives=True, id_=first.id)
        await second.charge.adopt(first.id)
        assert not await admitted(ledger(wire, TWO), one), "its place is taken"
        await second.end(100, 60)
        (balance,) = await spent(wire, KEYS, [of_key(one)])
        assert (balance.spent, balance.running) == (160, 0)
        assert 9 <= balance.requests < 9.9
        assert await admitted(ledger(wire, TWO), one)
        assert await redis.keys("*charged:" + first.id) == []


async def test_an_answer_that_has_ended_is_not_charged_again_by_who_adopts_it(redis: "Redis", wire: Wire) -> None:
    """Its replica may die after it was settled, and before its end is in the log."""
    one = client(tokens_a_day(1000))
    first = await Asked(ledger(wire), one, outlives=True).begin(100)
    await first.end(100, 20)
    second = Asked(ledger(wire, TWO), one, outlives=True, id_=first.id)
    await second.charge.adopt(first.id)
    await second.end(100, 20)
    assert await of_budget(redis, "alice") == 120


async def test_what_ends_while_redis_is_away_is_settled_when_it_is_back(redis: "Redis", wire: Wire) -> None:
    """The settlement is made once, and nobody waits for it."""
    away = Wire(async_client(f"redis://127.0.0.1:{free_port()}/0"))
    book, one = ledger(wire), client(limited(parallel=1, budget=Budget(1000)))
    request = await Asked(book, one).begin(100)
    book.wire = away
    await request.end(100, 50)
    assert await of_budget(redis, "alice") == 100
    with pytest.raises(StoreDown):
        await book.settle_rest()
    assert list(book.unsettled) == [request.id]
    book.wire = wire
    for _ in range(2):
        await book.settle_rest()
        assert await of_budget(redis, "alice") == 150
    assert book.unsettled == {}
    assert await admitted(book, one)


async def test_what_redis_may_have_admitted_is_given_back(redis: "Redis", wire: Wire) -> None:
    """Its answer was lost with the connection, so the request is refused."""
    book, one, real = ledger(wire), client(limited(rpm=5, tpm=100, parallel=1, budget=Budget(1000))), wire.execute_each

    async def lost(commands: Any) -> Any:
        await real(commands)
        raise StoreDown

    wire.execute_each = lost  # type: ignore[method-assign]
    with pytest.raises(StoreDown):
        await Asked(book, one).begin(100)
    wire.execute_each = real  # type: ignore[method-assign]
    await book.settle_rest()
    (balance,) = await spent(wire, KEYS, [of_key(one)])
    assert (balance.requests, balance.tokens, balance.spent, balance.running) == (5, 100, 0, 0)


async def test_the_list_of_what_is_to_be_settled_is_bounded(
    redis: "Redis", wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis may be away for days, say."""
    monkeypatch.setattr("app.tenants.ledger._MOST", 3)
    book = ledger(wire)
    for i in range(5):
        book.settle_later(RequestId(f"r{i}"), ("PING",))
    assert list(book.unsettled) == ["r2", "r3", "r4"]


async def test_a_client_without_limits_has_nothing_to_charge(redis: "Redis", wire: Wire) -> None:
    """Its requests thus cost no call to Redis."""
    assert Charge.of(ledger(wire), client(TenantLimits(models=["m"], file_quota=7, batch_requests_per_min=3))) is None


async def test_a_request_admitted_before_its_tokens_are_known_counts_once(redis: "Redis", wire: Wire) -> None:
    """Repeated admissions count once, together with the usual one, which then charges the tokens."""
    book, alice = ledger(wire), client(limited(rpm=3, parallel=1), TenantLimits(budget=Budget(1000, "tokens", "day")))
    early = Admission(book, alice, 60)
    for _ in range(3):
        await early.take()
    assert not await admitted(book, alice)  # its place is taken
    request = Asked(book, alice)
    request.charge.early = early.given_back
    await request.begin(prompt=70)
    assert await of_budget(redis, "tenant/red") == 70
    assert await redis.zcard(KEYS.running("alice")) == 1
    await early.close()
    await early.take()  # by what has its context and goes on
    await request.end(prompt=70, completion=30)
    assert await of_budget(redis, "tenant/red") == 100
    assert await redis.zcard(KEYS.running("alice")) == 0
    assert [await admitted(book, alice) for _ in range(2)] == [True, False]
    assert not await redis.keys("ledger:charged:*early*")


async def test_a_request_is_charged_the_most_that_it_may_have_until_its_tokens_are_known(
    redis: "Redis", wire: Wire
) -> None:
    """The charge takes the place of its first admission.

    No worker is asked about a picture of unknown size for a client that can't pay for it.
    """
    book, alice = ledger(wire), client(limited(rpm=2, parallel=1), TenantLimits(budget=Budget(1000, "tokens", "day")))
    early = Admission(book, alice, 60)
    await early.take()
    await early.take(Used(MODEL, 900))
    assert await of_budget(redis, "tenant/red") == 900
    assert await redis.zcard(KEYS.running("alice")) == 1
    request = Asked(book, alice)
    request.charge.early = early.given_back
    await request.begin(prompt=70)
    await request.end(prompt=70)
    assert await of_budget(redis, "tenant/red") == 70
    assert await redis.zcard(KEYS.running("alice")) == 0


async def test_a_request_that_comes_to_nothing_after_its_early_admission_stays_counted(
    redis: "Redis", wire: Wire
) -> None:
    """Pictures that can't be decoded would cost their sender nothing otherwise."""
    book, alice = ledger(wire), client(limited(rpm=1, parallel=1))
    early = Admission(book, alice, 60)
    await early.take()
    await early.close()
    assert await redis.zcard(KEYS.running("alice")) == 0
    with pytest.raises(RateLimited):
        await Admission(book, alice, 60).take()


async def test_of_many_early_admissions_at_once_no_more_pass_than_may(redis: "Redis", wire: Wire) -> None:
    book, alice = ledger(wire), client(limited(rpm=2))
    admissions = [Admission(book, alice, 60).take() for _ in range(20)]
    refusals = [one for one in await asyncio.gather(*admissions, return_exceptions=True) if one is not None]
    assert [type(one) for one in refusals] == [RateLimited] * 18
