"""Prefixes that caches have before anybody asks for them: over real processes, on mock engines with small caches."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.messages.lease import Speeds
from tests.lora import tiny_adapter
from tests.serving import Pools, served_by, serving
from tests.stack import Stack, leases, metric, mock_pool, stop, wait_until

POOL, OTHER = "decode-pool-a", "decode-pool-b"
BLOCK, ROOM = 16, 192  # blocks of a cache
PREFIXES = "/admin/prefixes"
RULES = "You are a helpful assistant of the harbour, and say when the boats leave. " * 8


ARGS: dict[str, Any] = {"step_ms": 1.0, "total_blocks": ROOM, "max_model_len": 1024, "block_size": BLOCK}


def pools(path: Path) -> Pools:
    """Two models, whose caches are easily filled; and an adapter."""
    tiny_adapter(path / "sources" / "sql", "weights")
    return {POOL: mock_pool(**ARGS), OTHER: mock_pool(model="other", **ARGS)}


fleet = served_by(
    pools, {"w1": POOL, "w2": POOL, "w3": OTHER}, XYLEM_LORA_SOURCES="{path}/sources", XYLEM_LORA_STORE="{path}"
)


@pytest.fixture(scope="module")
def served(fleet: Stack) -> Iterator[Stack]:
    yield fleet
    assert not any("harbour" in fleet.log(name) for name in fleet.names)


@pytest.fixture
def clean(served: Stack) -> Iterator[Stack]:
    yield served
    for one in listed(served):
        httpx.delete(f"{served.url}{PREFIXES}/{one['id']}").raise_for_status()
    httpx.post(f"{served.url}/admin/clear_kv_blocks", timeout=30).raise_for_status()


def pin(s: Stack, model: str = "mock", **body: Any) -> dict[str, Any]:
    answer = httpx.post(f"{s.url}{PREFIXES}", json={"model": model, **body}, timeout=90)
    prefix: dict[str, Any] = answer.json()
    assert answer.status_code == 200, prefix
    return prefix


def listed(s: Stack) -> list[dict[str, Any]]:
    prefixes: list[dict[str, Any]] = httpx.get(f"{s.url}{PREFIXES}", timeout=30).json()["data"]
    return prefixes


def card(s: Stack, pinned: dict[str, Any]) -> dict[str, Any]:
    return next(one for one in listed(s) if one["id"] == pinned["id"])


def ask(s: Stack, path: str = "/v1/completions", **body: Any) -> tuple[int, list[int]]:
    """The number of cached tokens, and the number of blocks that routing knew at each worker."""
    request = {"model": "mock", "max_tokens": 1, "temperature": 0, **body}
    answer = httpx.post(f"{s.url}{path}", json=request, headers={"x-xylem-explain": "1"}, timeout=60)
    assert answer.status_code == 200, answer.text
    details = answer.json()["usage"].get("prompt_tokens_details") or {}
    route = json.loads(answer.headers["x-xylem-route"])[0]
    return details.get("cached_tokens") or 0, [one["blocks_cached"] for one in route["candidates"]]


def flood(s: Stack, model: str) -> None:
    """Prompts that fill the cache of its one worker more than once."""
    for number in range(8):
        ask(s, model=model, prompt=[number + 1] * (ROOM * BLOCK // 4))


def test_a_prefix_is_cached_at_the_first_request_on_whichever_worker(clean: Stack) -> None:
    tokens = [7 + i % 900 for i in range(300)]
    prefix = pin(clean, tokens=tokens, pin_s=600)
    assert prefix["tokens"] == 300
    assert (prefix["warm"], prefix["pools"]) == (True, {POOL: {"blocks": 18, "places": 2, "wanted": 2}})
    assert card(clean, prefix) == prefix
    assert ask(clean, prompt=[*tokens, 5, 6, 7]) == (18 * BLOCK, [18, 18])
    assert ask(clean, prompt=[*tokens, 5, 6, 7], cache_salt="another tenant")[0] == 0


def test_a_text_is_cached_as_the_beginning_of_a_completion(clean: Stack) -> None:
    blocks = pin(clean, text=RULES, cache_salt="tenant")["pools"][POOL]["blocks"]
    assert blocks > 3
    assert ask(clean, prompt=f"{RULES} When does it leave?", cache_salt="tenant")[0] >= (blocks - 1) * BLOCK
    assert ask(clean, prompt=f"{RULES} When does it leave?")[0] == 0


@pytest.mark.parametrize(
    "more", [[], [("user", "When?"), ("assistant", "At nine.")], [("user", "When does it leave?")]]
)
def test_messages_are_cached_as_the_beginning_of_chats(clean: Stack, more: list[tuple[str, str]]) -> None:
    """The next message may be any."""
    begin = [{"role": role, "content": text} for role, text in [("system", RULES), *more]]
    blocks = pin(clean, messages=begin)["pools"][POOL]["blocks"]
    if not more or more[-1][0] == "assistant":
        chat = [*begin, {"role": "user", "content": "And the next one?"}]
    else:
        chat = begin
    assert ask(clean, "/v1/chat/completions", messages=chat)[0] == blocks * BLOCK > 3 * BLOCK


def test_it_is_cached_for_an_adapter(clean: Stack) -> None:
    source = {"name": "sql", "source": str(clean.directory / "sources" / "sql"), "model": "mock", "min_workers": 2}
    httpx.post(f"{clean.url}/admin/loras", json=source, timeout=90).raise_for_status()
    tokens = [7 + i % 900 for i in range(100)]
    prefix = pin(clean, "sql", tokens=tokens, pin_s=600)
    assert (prefix["model"], prefix["warm"]) == ("sql", True)
    assert ask(clean, model="mock", prompt=tokens)[0] == 0
    assert ask(clean, model="sql", prompt=tokens)[0] == 6 * BLOCK
    httpx.delete(f"{clean.url}/admin/loras/sql", timeout=90).raise_for_status()
    assert card(clean, prefix)["warm"] is False


def test_a_pinned_prefix_is_cached_after_a_flood_that_evicts_others(clean: Stack) -> None:
    """One that was dropped is among these, one that was computed once, and one whose time is over."""
    pinned_tokens, once, dropped_tokens, over = ([100 + kind, *range(200)] for kind in range(4))
    prefix = pin(clean, "other", tokens=pinned_tokens, pin_s=600)
    assert pin(clean, "other", tokens=once)["until"] is None
    dropped_prefix = pin(clean, "other", tokens=dropped_tokens, pin_s=600)
    short = pin(clean, "other", tokens=over, pin_s=0.5)
    assert dropped_prefix["warm"]
    assert httpx.delete(f"{clean.url}{PREFIXES}/{dropped_prefix['id']}").json() == {
        "id": dropped_prefix["id"],
        "dropped": True,
    }
    assert httpx.delete(f"{clean.url}{PREFIXES}/{dropped_prefix['id']}").status_code == 404
    wait_until(lambda: short["id"] not in {one["id"] for one in listed(clean)}, "its time is over")

    flood(clean, "other")
    wait_until(lambda: card(clean, prefix)["warm"], "it is cached again")
    assert ask(clean, model="other", prompt=[*pinned_tokens, 1])[0] == 12 * BLOCK
    for other in (once, dropped_tokens, over):
        assert ask(clean, model="other", prompt=[*other, 1])[0] == 0


def test_copies_are_on_so_many_workers_and_move_when_one_leaves_or_comes(clean: Stack) -> None:
    tokens = [[50 + number, *range(200)] for number in range(4)]
    single = [pin(clean, tokens=one, pin_s=600, copies=1) for one in tokens]
    assert all(one["pools"][POOL] == {"blocks": 12, "places": 1, "wanted": 1} for one in single)
    assert sorted(ask(clean, prompt=[*tokens[0], 1])[1]) == [0, 12]
    everywhere = pin(clean, tokens=[60, *range(200)], pin_s=600)

    clean.worker(POOL, "w4")
    clean.wait_ready(3)
    wait_until(lambda: card(clean, everywhere)["pools"][POOL]["places"] == 3, "the new worker has it")
    stop(clean.names["w1"])
    clean.wait_ready(2)
    for one in single:
        wait_until(lambda one=one: card(clean, one)["warm"], "another worker has it")  # type: ignore[misc]
    assert card(clean, everywhere)["pools"][POOL] == {"blocks": 12, "places": 2, "wanted": 2}


def test_a_sleeping_worker_computes_nothing_and_after_waking_all(clean: Stack) -> None:
    httpx.post(f"{clean.url}/admin/pools/{OTHER}/sleep", json={}, timeout=60).raise_for_status()
    prefix = pin(clean, "other", tokens=[*range(100)], pin_s=600, wait_s=0)
    assert (prefix["warm"], prefix["pools"][OTHER]) == (False, {"blocks": 6, "places": 0, "wanted": 0})
    httpx.post(f"{clean.url}/admin/pools/{OTHER}/wake", json={}, timeout=60).raise_for_status()
    wait_until(lambda: card(clean, prefix)["warm"], "it is cached")
    reply = httpx.post(f"{clean.url}/admin/pools/{OTHER}/clear_kv_blocks", timeout=60).json()
    assert len(reply["cleared"]) == 1
    wait_until(lambda: card(clean, prefix)["warm"], "it is cached again")


def test_it_is_nobodys_request(clean: Stack) -> None:
    """No metric of requests counts it, and no measured speed is from it."""

    def counted() -> dict[str, str]:
        lines = httpx.get(f"{clean.url}/metrics").text.splitlines()
        names = ("xylem_requests_total", "xylem_prompt_tokens_sum", "xylem_output_tokens_sum", "xylem_ttft")
        return {line.partition(" ")[0]: line for line in lines if line.startswith(names)}

    fresh = clean.worker(POOL, "fresh")
    clean.wait_ready(3)
    before, tokens_before = counted(), metric(clean, POOL, "prefill_tokens")
    pin(clean, tokens=[9, *range(600)], pin_s=600)
    wait_until(lambda: metric(clean, POOL, "prefill_tokens") >= tokens_before + 3 * 592, "all workers have told of it")
    assert counted() == before
    newest = next(lease for lease in leases(clean, POOL) if lease.worker.pid == fresh.pid)
    assert newest.speeds == Speeds()
    stop(fresh)
    clean.wait_ready(2)


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("text", {}),
        ("tokens", {"text": "a", "tokens": [1]}),
        ("tokens", {"tokens": [2**31]}),
        ("tokens", {"tokens": []}),
        ("tokens", {"tokens": [1] * 1023}),
        ("tokens", {"tokens": [1] * (BLOCK - 1)}),
        ("text", {"text": ""}),
        ("text", {"text": "boat " * 5000}),
        ("messages", {"messages": []}),
        ("messages.0.content.0", {"messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}]}]}),
        ("add_generation_prompt", {"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": True}),
        ("tools", {"text": "a", "tools": [{"type": "function", "function": {"name": "f"}}]}),
        ("copies", {"text": RULES, "copies": 0}),
        ("pin_s", {"text": RULES, "pin_s": -1}),
        ("pools", {"text": RULES, "pools": [OTHER]}),
        ("cache_salt", {"text": RULES, "cache_salt": ""}),
    ],
)  # fmt: skip
def test_a_wrong_body_is_refused_by_name(served: Stack, param: str, body: dict[str, Any]) -> None:
    answer = httpx.post(f"{served.url}{PREFIXES}", json={"model": "mock", **body}, timeout=30)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


def test_a_model_that_is_not_served_is_not_found(served: Stack) -> None:
    answer = httpx.post(f"{served.url}{PREFIXES}", json={"model": "nobody's", "text": RULES}, timeout=30)
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "model")


def test_prefill_workers_have_it_and_decode_workers_do_not_on_each_rank(valkey_url: str, tmp_path: Path) -> None:
    roles = {"prefill-pool-a": {"role": "prefill", "data_parallel_size": 2}, POOL: {"role": "decode"}}
    pools = {name: mock_pool(step_ms=1.0, block_size=BLOCK) | more for name, more in roles.items()}
    with serving(valkey_url, tmp_path, pools) as s:
        prefix = pin(s, tokens=[i % 2000 for i in range(5000)], pin_s=600)
        assert prefix["pools"] == {"prefill-pool-a": {"blocks": 312, "places": 2, "wanted": 2}}
        answer = httpx.post(f"{s.url}{PREFIXES}", json={"model": "mock", "text": RULES, "pools": [POOL]}, timeout=30)
        assert answer.json()["error"]["param"] == "pools"


def test_more_than_half_of_a_cache_is_refused(valkey_url: str, tmp_path: Path) -> None:
    pools = {POOL: mock_pool(total_blocks=64, max_model_len=1024, block_size=BLOCK)}
    with serving(valkey_url, tmp_path, pools, {"worker": POOL}) as s:
        answer = httpx.post(f"{s.url}{PREFIXES}", json={"model": "mock", "tokens": [1] * 528}, timeout=30)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tokens")
        assert pin(s, tokens=[1] * 512)["warm"]


def test_what_is_dropped_leaves_the_store_but_for_what_another_prefix_has(valkey_url: str, tmp_path: Path) -> None:
    (tmp_path / "stack").mkdir()
    disk = tmp_path / "kv"
    args = {"step_ms": 1.0, "total_blocks": 64, "handoff": {"block_bytes": 2**16}}
    pool = mock_pool(max_model_len=1024, block_size=BLOCK, **args) | {"tiers": {"host_gb": 0.02, "disk": str(disk)}}

    def stored() -> int:
        return sum(path.is_file() for path in disk.rglob("*"))

    with serving(valkey_url, tmp_path / "stack", {POOL: pool}, XYLEM_DEPLOYMENT=tmp_path.name) as s:
        common = [*range(4 * BLOCK)]
        pin(s, tokens=common, pin_s=600)
        longer = pin(s, tokens=[*common, *range(5 * BLOCK)], pin_s=600)
        wait_until(lambda: stored() == 9, "all blocks in the store")
        httpx.delete(f"{s.url}{PREFIXES}/{longer['id']}").raise_for_status()
        wait_until(lambda: stored() == 4, "the other prefix's blocks only", 90)
        assert [one["tokens"] for one in listed(s)] == [4 * BLOCK]
