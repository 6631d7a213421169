"""Engines that span several hosts, with the mock: who leads and who follows, and what becomes of a lost member."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from app.messages.group import Group, decode_group, decode_member
from tests.stack import Stack, leases, mock_pool, stack, wait_until

POOL = "decode-pool-a"
TEXT = [{"role": "user", "content": "tell me"}]


@pytest.fixture
def two(valkey_url: str, tmp_path: Path) -> Iterator[Stack]:
    """Two processes that are one engine, which takes its time."""
    pools = {POOL: mock_pool(step_ms=40.0) | {"nodes": 2, "tensor_parallel_size": 2}}
    with stack(valkey_url, tmp_path, pools, XYLEM_DEPLOYMENT=tmp_path.name, XYLEM_WORKER_PORT="0") as s:
        s.redis.flushall()
        s.api()
        start(s, "a", "b")
        yield s


def start(s: Stack, *names: str) -> None:
    for name in names:
        s.worker(name=name)
    wait_until(lambda: leases(s), "a leader takes requests")
    s.wait_ready()


def groups(s: Stack) -> list[Group]:
    """The group of each living member."""
    keys = s.redis.keys(f"{s.deployment}:member:*")
    raw_groups = [s.redis.get(key.replace(b":member:", b":group:")) for key in keys]
    return [decode_group(raw) for raw in raw_groups if raw is not None]


def roles(s: Stack, *names: str) -> tuple[str, str]:
    """The names of the leader, and of the follower."""
    (lease,) = leases(s)
    leader = next(name for name in names if s.names[name].pid == lease.worker.pid)
    return leader, next(name for name in names if name != leader)


def members(s: Stack) -> list[Any]:
    raws = [s.redis.get(key) for key in s.redis.keys(f"{s.deployment}:member:*")]
    return [decode_member(raw) for raw in raws if raw is not None]


def answer(s: Stack, tokens: int = 12) -> str:
    body = {"model": "mock", "messages": TEXT, "max_tokens": tokens, "seed": 1, "ignore_eos": True}
    reply = httpx.post(f"{s.url}/v1/chat/completions", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["message"]["content"])


async def streamed(s: Stack, tokens: int, after: int, then: Any) -> str:
    """The whole text of a stream; calls `then` after so many pieces of it."""
    text, pieces = "", 0
    async with AsyncOpenAI(base_url=f"{s.url}/v1", api_key="none", timeout=300) as client:
        stream = await client.chat.completions.create(
            model="mock",
            messages=TEXT,
            max_tokens=tokens,
            seed=1,
            stream=True,
            extra_body={"ignore_eos": True},  # type: ignore[arg-type]
        )
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            pieces += 1
            if pieces == after:
                await asyncio.to_thread(then)
    return text


def test_one_leads_and_takes_requests_and_the_other_follows(two: Stack) -> None:
    """Only the leader has a lease for routing, and a queue; both are of the same group, and ready."""
    assert answer(two)
    assert len(leases(two)) == 1
    first, second = groups(two)
    assert first == second
    assert len(first.members) == 2
    leader, follower = roles(two, "a", "b")
    assert "following" in two.log(follower)
    assert "engine_ready" in two.log(leader)
    assert "engine_ready" not in two.log(follower)


def test_a_lost_follower_ends_its_leader_and_the_answer_goes_on_in_a_new_group(two: Stack) -> None:
    """The stream says what it says undisturbed, and the new group has a higher epoch."""
    reference = answer(two, 60)
    epoch = groups(two)[0].epoch
    leader, follower = roles(two, "a", "b")

    def lose() -> None:
        two.names[follower].send_signal(signal.SIGKILL)
        wait_until(lambda: two.names[leader].poll() is not None, "its leader has ended")
        start(two, "a", "b")

    assert asyncio.run(streamed(two, 60, 5, lose)) == reference
    assert "group_lost" in two.log(leader)
    assert groups(two)[0].epoch > epoch


def test_a_lost_leader_ends_its_follower(two: Stack) -> None:
    leader, follower = roles(two, "a", "b")
    two.names[leader].send_signal(signal.SIGKILL)
    assert two.names[follower].wait(20) == 1
    assert "group_lost" in two.log(follower)
    start(two, "a", "b")
    assert answer(two)


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_a_member_that_is_told_to_end_lets_running_answers_end(two: Stack, who: str) -> None:
    """A follower's leader is told, and drains; nobody has to be restarted in a hurry."""
    reference = answer(two, 60)
    leader, follower = roles(two, "a", "b")
    process = two.names[leader if who == "leader" else follower]
    assert asyncio.run(streamed(two, 60, 5, lambda: process.send_signal(signal.SIGTERM))) == reference
    assert two.names[leader].wait(30) == 0
    assert two.names[follower].wait(30) == (0 if who == "follower" else 1)
    for name in (leader, follower):
        assert "group_lost" not in two.log(name)
    assert "worker_stopped" in two.log(leader)
    assert "group_over" in two.log(follower)


def test_a_third_waits_and_takes_the_place_of_a_lost_one(two: Stack) -> None:
    """The third worker leads or follows; until then it is told to wait, and ends at once when it is told to."""
    two.worker(name="c")
    wait_until(lambda: "waiting_for_members" in two.log("c"), "it waits")
    leader, follower = roles(two, "a", "b")
    two.names[follower].send_signal(signal.SIGKILL)
    wait_until(lambda: two.names[leader].poll() is not None, "its leader has ended")
    wait_until(lambda: not leases(two), "its lease is gone")
    start(two, leader)
    assert {member.worker for member in groups(two)[0].members} == {member.worker for member in members(two)}
    assert answer(two)
    two.worker(name="d")
    wait_until(lambda: "waiting_for_members" in two.log("d"), "it waits")
    two.names["d"].send_signal(signal.SIGTERM)
    assert two.names["d"].wait(20) == 0


def test_members_outlive_a_redis_that_has_lost_all(two: Stack) -> None:
    """Their leases are gone all at once, and come back: nobody was lost."""
    before = {name: two.names[name].pid for name in ("a", "b")}
    two.redis.flushall()
    wait_until(lambda: len(members(two)) == 2 and leases(two), "their leases are back")
    assert answer(two)
    assert all(two.names[name].poll() is None for name in before)
