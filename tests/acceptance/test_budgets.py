"""Limits of keys and tenants on real processes: two API replicas, a worker, and a Redis that is started again."""

import hashlib
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from app.ids import KeyId, TenantId
from app.messages.wire import encode
from app.tenants.limit_table import Budget, TenantLimits
from app.tenants.records import ApiKey, Price, Tenant
from tests.chaos.fleet import Fleet
from tests.serving import client_of
from tests.stack import mock_pool, stop, wait_until

POOL = "decode-pool-a"
PROMPT, ANSWER = 20, 10
PRICE = Price(2.0, 0.5, 8.0)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    directory = tmp_path_factory.mktemp("budgets")
    pools = {POOL: mock_pool(step_ms=5.0, answer_tokens=10_000)}
    with Fleet(directory / "fleet", pools, workers=1, XYLEM_REQUIRE_KEYS="true") as f:
        f.redis.hset("xylem:prices", "mock", encode(PRICE))
        yield f
        for name in f.stack.names:
            assert "Traceback" not in f.stack.log(name), name


def client(fleet: Fleet, replica: int, key: str) -> OpenAI:
    return client_of(fleet.urls()[replica], api_key=key)


def made(fleet: Fleet, name: str, team: TenantLimits = TenantLimits(), key: TenantLimits = TenantLimits()) -> str:  # noqa: B008 (frozen)
    """A key of a new tenant, both of that name, once each replica knows them."""
    token = f"xyl-{secrets.token_urlsafe(32)}"
    digest = hashlib.sha256(token.encode()).digest()
    record = ApiKey(name, digest, time.time(), id=KeyId(f"key_{name}"), tenant=TenantId(name), more=key)
    fleet.redis.hset("xylem:tenants", name, encode(Tenant(TenantId(name), limits=team)))
    fleet.redis.hset("xylem:keys:api", name, encode(record))

    def valid(replica: int) -> bool:
        try:
            with client(fleet, replica, token) as c:
                c.models.list()
        except openai.AuthenticationError:
            return False
        return True

    for replica in range(2):
        wait_until(lambda replica=replica: valid(replica), "the key is valid")
    return token


def spent(fleet: Fleet, account: str) -> float:
    """The amount that the account has spent once all requests are settled."""
    wait_until(lambda: not fleet.redis.keys("xylem:charged:*"), "all is settled")
    return float(fleet.redis.hget(f"xylem:budget:{account}", "spent") or "nan")  # type: ignore[arg-type]


def ask(c: OpenAI, *, stream: bool = False, **more: Any) -> int:
    """Number of tokens that the request cost by its own usage."""
    fields: dict[str, Any] = {"model": "mock", "prompt": [5] * PROMPT, "max_tokens": ANSWER} | more
    if not stream:
        answer = c.completions.create(**fields)
        assert answer.usage is not None
        return answer.usage.total_tokens
    chunks = list(c.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    return next(chunk.usage.total_tokens for chunk in chunks if chunk.usage is not None)


def test_a_tenants_budget_is_exact_over_two_replicas_and_a_restart_of_redis(fleet: Fleet) -> None:
    """The charge is what answers say of their usage; and it is over the budget by no more than one answer."""
    budget, clients = 6000, 8
    token = made(fleet, "exact", TenantLimits(budget=Budget(budget)))
    token_counts: list[int] = []
    refusals: list[openai.RateLimitError] = []
    away: list[int] = []
    half = threading.Event()

    def use(number: int) -> None:
        with client(fleet, number % 2, token) as c:
            for i in range(10_000):
                try:
                    token_counts.append(ask(c, stream=i % 2 == 0))
                except openai.RateLimitError as exc:
                    if exc.code == "insufficient_quota":
                        refusals.append(exc)
                        return
                    time.sleep(0.02)  # the others' answers may take the rest
                except openai.InternalServerError as exc:  # it came while Redis was away, and is asked again
                    away.append(exc.status_code)
                    time.sleep(0.1)
                if sum(token_counts) > budget / 3:
                    half.set()

    with ThreadPoolExecutor(clients) as pool:
        using = [pool.submit(use, number) for number in range(clients)]
        assert half.wait(120)
        assert fleet.redis_process is not None
        stop(fleet.redis_process)  # requests are in flight
        time.sleep(1)
        fleet.start_redis()
        for each in using:
            each.result()
    assert spent(fleet, "tenant/exact") == sum(token_counts)
    assert budget <= sum(token_counts) < budget + PROMPT + ANSWER
    assert set(away) <= {503}
    assert len(refusals) == clients
    for refusal in refusals:
        assert (refusal.type, refusal.code) == ("insufficient_quota", "insufficient_quota")
        assert "The tenant 'exact' has spent" in refusal.message
        assert int(refusal.response.headers["retry-after"]) > 0
    for replica in range(2):
        with client(fleet, replica, token) as c, pytest.raises(openai.RateLimitError):
            ask(c)
    fleet.wait_whole()


def test_money_is_by_the_prices_of_cached_and_other_tokens(fleet: Fleet) -> None:
    """The numbers of tokens are those of the answers' usage."""
    token = made(fleet, "money", key=TenantLimits(budget=Budget(1.0, "money", "day")))
    fields: dict[str, Any] = {"model": "mock", "prompt": [7] * 200, "max_tokens": 5}
    money, cached_tokens = 0.0, 0
    with client(fleet, 0, token) as c:
        for _ in range(3):
            usage = c.completions.create(**fields).usage
            assert usage is not None
            assert usage.prompt_tokens_details is not None
            hit = usage.prompt_tokens_details.cached_tokens or 0
            cached_tokens += hit
            money += ((usage.prompt_tokens - hit) * 2.0 + hit * 0.5 + usage.completion_tokens * 8.0) / 1e6
    assert cached_tokens > 0
    assert spent(fleet, "key_money") == pytest.approx(money)


def test_the_used_part_of_a_budget_is_in_the_metrics_of_each_replica(fleet: Fleet) -> None:
    token = made(fleet, "metered", TenantLimits(budget=Budget(100, "tokens", "day")))
    with client(fleet, 0, token) as c:
        share = sum(ask(c) for _ in range(3)) / 100
    line = f'xylem_budget_used_ratio{{key="",tenant="metered"}} {share}'
    for url in fleet.urls():
        wait_until(lambda url=url: line in httpx.get(f"{url}/metrics").text, "the metric says so")


def test_requests_that_come_at_once_are_over_a_budget_by_one_answer_at_most(fleet: Fleet) -> None:
    """Answers of several choices do so too.

    Other requests try again when such an answer has ended, and are served if anything is left.
    """
    token = made(fleet, "at-once", key=TenantLimits(budget=Budget(1000)))
    fields: dict[str, Any] = {"model": "mock", "prompt": [5] * PROMPT, "max_tokens": 400, "n": 8}

    def use(number: int) -> int | str:
        with client(fleet, number % 2, token) as c:
            try:
                usage = c.completions.create(**fields).usage
            except openai.RateLimitError as exc:
                return str(exc.code)
        assert usage is not None
        return usage.total_tokens

    with ThreadPoolExecutor(12) as pool:
        outcomes = list(pool.map(use, range(12)))
    whole = PROMPT + 8 * 400
    assert outcomes.count(whole) == 1
    assert set(outcomes) <= {whole, "rate_limit_exceeded", "insufficient_quota"}
    assert spent(fleet, "key_at-once") == whole


def running(c: OpenAI) -> Any:
    """A long answer of which something has come."""
    stream = c.completions.create(model="mock", prompt=[5] * PROMPT, max_tokens=5000, stream=True)
    next(iter(stream))
    return stream


def test_places_of_a_killed_replica_are_given_to_others_and_those_of_a_living_one_are_not(fleet: Fleet) -> None:
    """The prompts of what it had are charged, and nothing more."""
    token = made(fleet, "seats", TenantLimits(parallel=2, budget=Budget(1_000_000)))

    def admitted(replica: int) -> bool:
        with client(fleet, replica, token) as c:
            try:
                ask(c)
            except openai.RateLimitError as exc:
                refusals.add((exc.code, exc.message))
                return False
            return True

    refusals: set[tuple[str | None, str]] = set()

    with client(fleet, 0, token) as one, client(fleet, 1, token) as two:
        first, second = running(one), running(two)
        assert not admitted(0)
        assert not admitted(1)
        second.close()
        wait_until(lambda: admitted(1), "who has left makes room")
        first.close()
    with client(fleet, 0, token) as one:
        streams = [running(one) for _ in range(2)]
        assert not admitted(1)
        before = float(fleet.redis.hget("xylem:budget:tenant/seats", "spent") or 0)  # type: ignore[arg-type]
        fleet.process("api-0").send_signal(signal.SIGKILL)
        wait_until(lambda: admitted(1), "the places of a dead replica are free")
        now = float(fleet.redis.hget("xylem:budget:tenant/seats", "spent") or 0)  # type: ignore[arg-type]
        assert now == before + PROMPT + ANSWER
        for stream in streams:
            stream.close()
    (refusal,) = refusals
    assert refusal[0] == "rate_limit_exceeded"
    assert "The tenant 'seats' may have 2 requests at once" in refusal[1]
    keys = fleet.redis.keys("xylem:charged:*")
    assert len(keys) == 2  # type: ignore[arg-type]
    fleet.redis.unlink(*keys)  # type: ignore[misc]
    fleet.start_api(0)
    fleet.wait_whole()


@pytest.mark.parametrize("at", [0, 1], ids=["where it is made", "elsewhere"])
def test_a_cancelled_background_answer_is_charged_what_was_made_and_leaves_no_record_of_it(
    fleet: Fleet, at: int
) -> None:
    """Nobody continues it: until then its record stayed for a day."""
    name = f"cancelled-{at}"
    token = made(fleet, name, TenantLimits(budget=Budget(1_000_000)))
    with client(fleet, 0, token) as one, client(fleet, at, token) as other:
        response = one.responses.create(model="mock", input="hello", max_output_tokens=5000, background=True)
        wait_until(lambda: one.responses.retrieve(response.id).output, "something has come")
        other.responses.cancel(response.id)
        charge = spent(fleet, f"tenant/{name}")
    assert 1 < charge < 5000
    assert fleet.redis.exists(f"xylem:budget:tenant/{name}:reserved") == 0


def test_who_leaves_an_answer_that_is_not_streamed_is_charged_what_was_made(fleet: Fleet) -> None:
    """Its tokens are on their way to nobody: they were charged as none."""
    token = made(fleet, "left", TenantLimits(budget=Budget(1_000_000)))
    with client(fleet, 0, token) as one, pytest.raises(openai.APITimeoutError):
        one.completions.create(model="mock", prompt=[5] * PROMPT, max_tokens=5000, timeout=4)
    assert PROMPT + 100 < spent(fleet, "tenant/left") < PROMPT + 5000


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
def test_an_adopted_answer_is_charged_once(fleet: Fleet, by: signal.Signals) -> None:
    """All of its tokens, of both replicas together."""
    name = f"kept-{by.name.lower()}"
    token = made(fleet, name, TenantLimits(budget=Budget(1_000_000), parallel=1))
    with client(fleet, 0, token) as one, client(fleet, 1, token) as two:
        fields: dict[str, Any] = {"model": "mock", "input": "hello", "max_output_tokens": 1000}
        response = one.responses.create(**fields, background=True)
        wait_until(lambda: two.responses.retrieve(response.id).output, "something has come")
        fleet.process("api-0").send_signal(by)

        def whole() -> Any:
            now = two.responses.retrieve(response.id)
            assert now.status in ("queued", "in_progress", "incomplete", "completed")
            return now if now.status in ("incomplete", "completed") else None

        usage = wait_until(whole, "the response is whole", 120).usage
        assert usage.output_tokens == 1000
        assert spent(fleet, f"tenant/{name}") == usage.total_tokens
        assert ask(two) > 0, "its place is free"
    fleet.process("api-0").wait(60)
    fleet.start_api(0)
    fleet.wait_whole()
