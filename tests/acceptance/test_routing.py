"""Routing by KV cache, seen from outside: real processes, the mock engine, the official client."""

import asyncio
import json
import signal
from itertools import count, islice
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, BadRequestError

from app.dispatch.fleet.loads import entries
from app.keys import Keys
from app.messages.lease import Lease
from tests.serving import client_of, replica_of, served_by, serving
from tests.stack import Stack, indexed_blocks, leases, mock_pool, wait_until

KEYS, POOL = Keys("routing"), "decode-pool-a"
WORDS = "the quick brown fox jumps over the lazy dog and runs "


FAST: dict[str, Any] = {"max_model_len": 4096, "speedup": 20.0}
TABLE = {"tokens": [400], "target_ms": [20], "pools": [["fast", "fast"], ["short", "long"]]}
served = served_by(
    {POOL: mock_pool(**FAST), "ranks": mock_pool(model="ranks", **FAST) | {"data_parallel_size": 2}}
    | {name: mock_pool(model="table", **FAST) for name in ("short", "long", "fast")},
    {f"worker{i}": POOL for i in range(4)}, more={"select": {"table": {"decode": TABLE}}},
)  # fmt: skip


@pytest.fixture(scope="module")
def fleet(served: Stack) -> tuple[Stack, list[str]]:
    """Four workers and two API replicas."""
    return served, [served.url, replica_of(served, "api2")]


async def hit_rate(urls: list[str], salt: str) -> float:
    """The cached share of the prompt tokens of 15 groups of 8 requests each, sent to the replicas in turn."""
    clients = [AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300) for url in urls]
    gate = asyncio.Semaphore(8)

    async def ask(number: int) -> tuple[int, int]:
        group, member = number % 15, number // 15
        prompt = f"group {group} " + WORDS * 20 + f" member {member}"
        async with gate:
            answer = await clients[number % len(clients)].completions.create(
                model="mock", prompt=prompt, max_tokens=4, temperature=0, extra_body={"cache_salt": salt}
            )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens, answer.usage.prompt_tokens_details.cached_tokens or 0

    usage = await asyncio.gather(*map(ask, range(120)))
    for c in clients:
        await c.close()
    return sum(cached_tokens for _, cached_tokens in usage) / sum(tokens for tokens, _ in usage)


@pytest.mark.timeout(180)
def test_two_replicas_hit_as_often_as_one(fleet: tuple[Stack, list[str]]) -> None:
    """Both decide on the same facts. The most there is: all but the first of each group's eight."""
    _, urls = fleet
    one = [asyncio.run(hit_rate(urls[:1], f"one-{i}")) for i in range(2)]
    two = [asyncio.run(hit_rate(urls, f"two-{i}")) for i in range(2)]
    assert min(one) > 0.7, (one, two)
    assert abs(sum(one) - sum(two)) / 2 < 0.03, (one, two)


def ask(
    url: str, prompt: str, explain: bool = True, model: str = "mock", **body: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The usage, and why it went where it went."""
    with client_of(url) as c:
        answer = c.completions.with_raw_response.create(
            model=model, prompt=prompt, max_tokens=2, temperature=0, extra_body=body,
            extra_headers={"x-xylem-explain": "1"} if explain else None,
        )  # fmt: skip
    usage = answer.parse().usage
    assert usage is not None
    route = answer.headers.get("x-xylem-route")
    return usage.model_dump(), json.loads(route)[0] if route else {}


def cached(usage: dict[str, Any]) -> int:
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def test_the_second_request_goes_where_the_first_ones_prefix_lies(fleet: tuple[Stack, list[str]]) -> None:
    """Seen by the other replica; the header tells which worker, which candidates and what each would have cost."""
    _, urls = fleet
    prompt = "once upon a time " + WORDS * 15
    salts = count()

    def second() -> dict[str, Any] | None:
        salt = f"explained-{next(salts)}"
        first, why = ask(urls[0], prompt, cache_salt=salt)
        assert (cached(first), why["blocks_cached"], len(why["candidates"])) == (0, 0, 4)
        usage, again = ask(urls[1], prompt, cache_salt=salt)
        if not again["blocks_cached"]:  # the first one's KV events were not in the index yet
            return None
        assert again["worker"] == why["worker"]
        assert cached(usage) > 0
        return again

    again = wait_until(second, "a second one comes after the first one's KV events")
    best = again["candidates"][0]
    assert {"requests", "waiting", "queued_tokens"} <= best.keys()
    assert best["worker"] == again["worker"]
    costs = [c["wait"] + c["prefill"] + c["others"] for c in again["candidates"]]
    assert costs == sorted(costs)
    assert costs[0] < costs[1]


def test_routing_is_explained_only_on_request(fleet: tuple[Stack, list[str]]) -> None:
    """The names of workers are the operator's business."""
    _, urls = fleet
    assert ask(urls[0], "hello", explain=False)[1] == {}


def test_streams_are_explained_too(fleet: tuple[Stack, list[str]]) -> None:
    """The explanation is in the headers, before the first token."""
    _, urls = fleet
    body = {"model": "mock", "prompt": "hello", "stream": True, "max_tokens": 2}
    with httpx.stream("POST", f"{urls[0]}/v1/completions", json=body, headers={"x-xylem-explain": "1"}) as answer:
        assert json.loads(answer.headers["x-xylem-route"])[0]["pool"] == POOL
        assert answer.read()


def test_another_salt_shares_nothing(fleet: tuple[Stack, list[str]]) -> None:
    """Tenants can't find out by timing what others have asked."""
    _, urls = fleet
    prompt = "a secret " + WORDS * 15
    wait_until(lambda: cached(ask(urls[0], prompt, cache_salt="mine")[0]), "the same salt finds it")
    usage, why = ask(urls[0], prompt, cache_salt="yours")
    assert cached(usage) == 0
    assert [c["blocks_cached"] for c in why["candidates"]] == [0] * 4


def test_a_session_stays_on_its_worker(fleet: tuple[Stack, list[str]]) -> None:
    """OpenAI's `prompt_cache_key`, at either replica, though the prompts have nothing in common."""
    _, urls = fleet
    homes = {ask(urls[i % 2], f"{i} unlike any other", prompt_cache_key="me")[1]["worker"] for i in range(6)}
    assert len(homes) == 1


def test_the_hit_rate_is_in_the_metrics(fleet: tuple[Stack, list[str]]) -> None:
    """Matched and missed blocks, the time a decision takes, the imbalance."""
    _, urls = fleet
    text = httpx.get(f"{urls[0]}/metrics").text
    for name in ("blocks_matched_total", "blocks_missed_total", "decision_seconds_count", "imbalance"):
        assert f'xylem_routing_{name}{{pool="{POOL}"}}' in text


def test_cleared_caches_are_forgotten(fleet: tuple[Stack, list[str]]) -> None:
    """The engines forget them, and the index does at once."""
    s, urls = fleet
    prompt = "to be forgotten " + WORDS * 15
    ask(urls[0], prompt, cache_salt="cleared")
    wait_until(lambda: cached(ask(urls[0], prompt, cache_salt="cleared")[0]), "its KV events are there")
    answer = httpx.post(f"{urls[0]}/admin/pools/{POOL}/clear_kv_blocks", timeout=20).json()
    assert (len(answer["cleared"]), answer["refused"]) == (4, {})
    assert indexed_blocks(s, POOL) == 0
    usage, why = ask(urls[0], prompt, cache_salt="cleared")
    assert (cached(usage), why["blocks_cached"]) == (0, 0)


def test_limits_are_seen_changed_and_checked(fleet: tuple[Stack, list[str]]) -> None:
    """Any replica does so for all of them; nonsense is refused by name."""
    _, urls = fleet
    path = f"/admin/pools/{POOL}/limits"
    assert httpx.get(urls[0] + path).json() == {"max_queued": 1024, "active_blocks": None, "queued_tokens": None}
    answer = httpx.patch(urls[0] + path, json={"active_blocks": 0.9, "max_queued": 7})
    assert answer.json() == {"max_queued": 7, "active_blocks": 0.9, "queued_tokens": None}
    assert httpx.get(urls[1] + path).json() == answer.json()
    assert httpx.patch(urls[1] + path, json={"active_blocks": None, "max_queued": None}).json()["max_queued"] == 1024
    for bad in ({"max_queued": -1}, {"active_blocks": 0}, {"queued_tokens": 0}, {"nonsense": 1}):
        error_answer = httpx.patch(urls[0] + path, json=bad)
        assert error_answer.status_code == 400
        assert error_answer.json()["error"]["param"] in bad
    for content in ('{"active_blocks": Infinity}', '{"max_queued": true}', "[]", "{not json"):
        assert httpx.patch(urls[0] + path, content=content).status_code == 400
    assert httpx.get(f"{urls[0]}/admin/pools/other/limits").status_code == 404
    page = httpx.post(f"{urls[0]}/admin/clear_kv_blocks", headers={"origin": "http://elsewhere"})
    assert page.status_code == 403  # a page in somebody's browser must not reach what has no key
    for header in ("forwarded", "via", "x-forwarded-for", "X-Forwarded-Host", "x-forwarded-proto", "x-real-ip"):
        proxy_answer = httpx.post(f"{urls[0]}/admin/clear_kv_blocks", headers={header: "anything"})
        assert proxy_answer.status_code == 403, header  # nor the clients of a proxy on this machine
        assert "XYLEM_ADMIN_KEY" in proxy_answer.json()["error"]["message"]


def test_a_killed_workers_cache_counts_for_nothing_at_once(fleet: tuple[Stack, list[str]]) -> None:
    """Nobody else gets its number, nor a prompt that it had: its entries are removed later."""
    s, urls = fleet
    redis = s.redis
    others = {lease.worker.id for lease in leases(s, POOL)}
    victim = s.worker(name="victim")
    s.wait_ready(5)
    numbers = count()

    def cached_there() -> Lease | None:
        for number in islice(numbers, 8):
            ask(urls[0], f"{number} on the victim " + WORDS * 15)
        (lease,) = [lease for lease in leases(s, POOL) if lease.worker.id not in others]
        return lease if lease.caches[0] else None

    victim_lease = wait_until(cached_there, "the victim has something cached")
    victim.send_signal(signal.SIGKILL)
    s.wait_ready(4)
    wait_until(lambda: len(redis.hkeys(KEYS.pool(POOL))) == 4, "it is no member any more", 15)  # type: ignore[arg-type]
    assert victim_lease.worker.id.encode() not in [p for group in redis.hvals(KEYS.loads(POOL)) for p in entries(group)]
    for number in range(next(numbers)):
        assert ask(urls[0], f"{number} on the victim " + WORDS * 15)
    assert victim_lease.caches[0] not in [number for lease in leases(s, POOL) for number in lease.caches]


def test_admin_endpoints_want_the_key(valkey_url: str, tmp_path: Path) -> None:
    """A server that only this machine can reach needs none."""
    pools = {POOL: mock_pool()}
    env = {"XYLEM_DEPLOYMENT": "locked", "XYLEM_ADMIN_KEY": "sesame", "XYLEM_ALLOWED_ORIGINS": "http://elsewhere"}
    with serving(valkey_url, tmp_path, pools, {}, **env) as s:
        url = f"{s.url}/admin/pools/{POOL}/limits"
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "sesame"}):
            answer = httpx.get(url, headers=headers)
            assert answer.status_code == 403
            assert answer.json()["error"]["code"] == "forbidden"
        assert httpx.get(url, headers={"authorization": "Bearer sesame"}).status_code == 200
        pool = httpx.patch(url, headers={"authorization": "Bearer sesame", "origin": "http://elsewhere"}, json={})
        assert pool.status_code == 200
        assert "sesame" not in s.log("api")


def test_data_parallel_ranks_are_routed_to_by_their_own_caches(fleet: tuple[Stack, list[str]]) -> None:
    """One worker, two ranks: a prefix is found on the rank that has it."""
    s, _ = fleet
    s.worker("ranks", "ranks")
    s.wait_ready(model="ranks")
    ranks: dict[str, int] = {}

    for name in map(str, range(20)):  # by chance both ranks get some, but once in half a million
        prompt, before = f"{name} {WORDS * 15}", indexed_blocks(s, "ranks")
        _, why = ask(s.url, prompt, model="ranks")
        ranks[name] = why["rank"]
        assert len(why["candidates"]) == 2
        wait_until(lambda before=before: indexed_blocks(s, "ranks") > before, "its KV events are there")  # type: ignore[misc]
        usage, why = ask(s.url, prompt, model="ranks")
        assert why["rank"] == ranks[name]
        assert cached(usage) > 0
    assert set(ranks.values()) == {0, 1}


def test_a_table_chooses_the_pool_by_length_and_target(fleet: tuple[Stack, list[str]]) -> None:
    """Another pool of the model takes the request when that pool has no worker."""
    s, _ = fleet
    for name in ("short", "long"):
        s.worker(name, name)
    s.wait_ready(2, "table")
    assert ask(s.url, "hello", model="table")[1]["pool"] == "short"
    assert ask(s.url, WORDS * 60, model="table")[1]["pool"] == "long"
    nobody_is_fast = ask(s.url, "hello", model="table", routing={"itl_ms": 10})
    assert nobody_is_fast[1]["pool"] in ("short", "long")
    s.worker("fast", "fast")
    s.wait_ready(3, "table")
    assert ask(s.url, "hello", model="table", routing={"itl_ms": 10})[1]["pool"] == "fast"
    with pytest.raises(BadRequestError, match=r"routing\.ttft_ms"):  # no table asks about it
        ask(s.url, "hello", model="table", routing={"ttft_ms": 10})
