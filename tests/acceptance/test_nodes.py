"""Real engines over several hosts, each a network namespace: `make nodes`, as root. Loading takes minutes."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from tests.nodes import MODEL, POOL, Hosts, on_hosts
from tests.shallow import shallow_model
from tests.stack import indexed_blocks, leases, wait_until
from tests.tiny import tiny_model

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(1800)]

STORY = "Once upon a time a fisherman lived with his wife in a small house by the sea. " * 8
COMMON = {"max_model_len": 1024, "max_running": 4}
VLLM = COMMON | {"engine": "vllm", "block_size": 32, "args": {"kv_cache_memory_bytes": 2**27}}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """One vLLM whose tensors are on three hosts: its model has nine heads and three KV heads."""
    pool = VLLM | {"path": str(shallow_model()), "nodes": 3, "tensor_parallel_size": 3}
    with on_hosts(tmp_path_factory.mktemp("three"), pool, 3) as hosts:
        hosts.wait_ready()
        yield hosts


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """One vLLM with a data-parallel rank on each of two hosts."""
    pool = VLLM | {"path": str(shallow_model()), "nodes": 2, "data_parallel_size": 2}
    with on_hosts(tmp_path_factory.mktemp("ranks"), pool, 2) as hosts:
        hosts.wait_ready()
        yield hosts


@pytest.fixture(scope="module")
def sglang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    pool = COMMON | {"engine": "sglang", "block_size": 16, "args": {"max_total_tokens": 4096}}
    pool |= {"path": str(tiny_model()), "nodes": 2, "tensor_parallel_size": 2}
    with on_hosts(tmp_path_factory.mktemp("sglang"), pool, 2) as hosts:
        hosts.wait_ready()
        yield hosts


def asked(tokens: int, prompt: str = STORY) -> dict[str, Any]:
    return {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0}


def answer(hosts: Hosts, tokens: int, prompt: str = STORY) -> str:
    body = asked(tokens, prompt) | {"ignore_eos": True}
    reply = httpx.post(f"{hosts.stack.url}/v1/completions", json=body, timeout=600)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["text"])


async def streamed(hosts: Hosts, tokens: int, after: int, then: Any) -> str:
    """What a stream says in all; after so many pieces of it, `then` is done."""
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
    """Of the last group."""
    return int(hosts.stack.redis.get(f"xylem:group-epoch:{POOL}"))


def recovers(hosts: Hosts, before: int) -> None:
    """A new group of the same hosts, with a higher epoch, answers."""
    wait_until(lambda: not leases(hosts.stack, POOL), "the leader has ended", 20)
    hosts.wait_ready()
    assert epoch(hosts) > before


def test_tensors_on_three_hosts_make_an_answer(three: Hosts) -> None:
    """The first host to come leads; the two others have no lease for routing."""
    assert len(leases(three.stack, POOL)) == 1
    assert answer(three, 12) == answer(three, 12)
    others = [host for host in three.hosts if host != three.leader()]
    assert all("following" in three.log(host) and "engine_ready" not in three.log(host) for host in others)
    wait_until(lambda: indexed_blocks(three.stack, POOL), "the leader's KV events are in the index")


def test_an_idle_follower_that_is_killed_ends_the_engine_which_comes_back(three: Hosts) -> None:
    """vLLM itself would not notice before the next request, which would fail."""
    said, before = answer(three, 12), epoch(three)
    three.kill(three.follower())
    recovers(three, before)
    assert answer(three, 12) == said


def test_an_answer_survives_a_follower_that_is_killed_in_the_middle_of_it(three: Hosts) -> None:
    """It goes on in the new group, and says what it says undisturbed."""
    said, before = answer(three, 40), epoch(three)

    def lose() -> None:
        three.kill(three.follower())
        recovers(three, before)

    assert asyncio.run(streamed(three, 40, 5, lose)) == said


def test_ranks_on_two_hosts_have_caches_of_their_own_in_the_index(ranks: Hosts) -> None:
    """Those of the second one are fed on its own host, and routing finds both."""
    wait_until(lambda: len(leases(ranks.stack, POOL)[0].caches) == 2, "both ranks are in the lease")
    for i in range(6):  # an empty rank is preferred to one that is busy: both get some
        answer(ranks, 4, f"Story number {i}: {STORY}")

    def told() -> bool:
        (lease,) = leases(ranks.stack, POOL)
        return all(lease.caches) and len(lease.caches) == 2

    wait_until(told, "both caches have numbers", 60)
    assert indexed_blocks(ranks.stack, POOL) > 0


def test_a_rank_that_is_killed_ends_the_engine_which_comes_back(ranks: Hosts) -> None:
    said, before = answer(ranks, 12), epoch(ranks)
    ranks.kill(ranks.follower())
    recovers(ranks, before)
    assert answer(ranks, 12) == said


def test_an_sglang_on_two_hosts_makes_an_answer_and_survives_its_follower(sglang: Hosts) -> None:
    """As vLLM; its follower has no KV events, since the leader's are those of both."""
    said, before = answer(sglang, 24), epoch(sglang)
    wait_until(lambda: indexed_blocks(sglang.stack, POOL), "the leader's KV events are in the index")

    def lose() -> None:
        sglang.kill(sglang.follower())
        recovers(sglang, before)

    assert asyncio.run(streamed(sglang, 24, 5, lose)) == said
