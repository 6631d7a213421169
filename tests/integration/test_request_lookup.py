"""Tests what a process that does not make an answer says about its request, over a real Redis."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import MagicMock

import pytest
from redis.asyncio import Redis

from app.dispatch.observing.request_lookup import RequestLookup
from app.dispatch.observing.timeline import Timelines
from app.errors import RequestNotFound, StoreDown
from app.ids import ApiId, KeyId, RequestId, made_by, new_api_id, new_request_id
from app.keys import Keys
from app.store import Wire
from tests.background import beside

KEYS = Keys("lookup")
ALICE, BOB = KeyId("key_alice"), KeyId("key_bob")


class Process:
    def __init__(self, redis: "Redis", wire: Wire) -> None:
        self.redis, self.api, self.timelines = redis, new_api_id(), Timelines()
        self.lookup = RequestLookup(wire, redis, KEYS, self.api, self.timelines)

    def ended(self, key: KeyId = ALICE) -> RequestId:
        request = new_request_id("chatcmpl-", self.api)
        self.timelines.ended(request, key, [])
        return request

    @asynccontextmanager
    async def alive(self) -> AsyncIterator[None]:
        await self.redis.set(KEYS.api(self.api), "1")
        async with beside(self.lookup.run()):
            yield
        await self.redis.delete(KEYS.api(self.api))


@pytest.fixture
def two(redis: "Redis", wire: Wire) -> tuple[Process, Process]:
    return Process(redis, wire), Process(redis, wire)


async def knows(asked: Process, request: str, key: KeyId | None) -> bool:
    try:
        return (await asked.lookup.find(RequestId(request), key))["id"] == request
    except RequestNotFound:
        return False


async def test_any_process_is_asked_and_only_about_requests_of_who_asks(
    redis: "Redis", two: tuple[Process, Process]
) -> None:
    """The whole id is needed; nobody learns whether another one's request exists."""
    maker, other = two
    request = maker.ended()
    running = new_request_id("cmpl-", maker.api)
    maker.timelines.began(running, ALICE, [])
    async with maker.alive(), other.alive():
        for process in two:
            for id_ in (request, running):
                assert [await knows(process, id_, key) for key in (ALICE, None, BOB, KeyId(""))] == [True, True] + 2 * [
                    False
                ]
            for wrong in (
                request[:-1],
                "chatcmpl",
                "",
                f"{request}-0",
                request.replace("chatcmpl", "cmpl"),
                "x" * 9999,
            ):
                assert not await knows(process, wrong, None)
    assert await redis.keys(f"{KEYS.prefix}reply:*") == []


async def test_of_a_process_that_is_gone_nothing_is_known_and_nobody_waits_for_it(two: tuple[Process, Process]) -> None:
    maker, other = two
    request = maker.ended()
    async with asyncio.timeout(1.5):  # less than a living one is waited for
        assert not await knows(other, request, ALICE)


async def test_a_process_that_lives_and_says_nothing_is_said_so(
    redis: "Redis", two: tuple[Process, Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its request may exist: 503, and not 404."""
    monkeypatch.setattr("app.dispatch.observing.request_lookup._SILENT_S", 0.2)
    maker, other = two
    await redis.set(KEYS.api(maker.api), "1")
    with pytest.raises(StoreDown, match="does not answer"):
        await other.lookup.find(maker.ended(), ALICE)
    assert 0 < await redis.ttl(KEYS.commands(maker.api)) <= 60


async def test_a_kept_request_is_known_where_it_was_adopted(redis: "Redis", two: tuple[Process, Process]) -> None:
    """Its id names the process that died."""
    maker, adopter = two
    request = maker.ended()
    adopter.timelines.ended(request, ALICE, [])
    await redis.hset(KEYS.kept(request), "owner", adopter.api)
    third = Process(redis, adopter.lookup._wire)
    async with adopter.alive():
        assert await knows(third, request, ALICE)
        assert not await knows(third, request, BOB)


async def test_what_is_not_understood_hides_no_other_question(redis: "Redis", two: tuple[Process, Process]) -> None:
    """Another version's."""
    maker, other = two
    await redis.rpush(KEYS.commands(maker.api), b"\xc1nonsense")
    async with maker.alive():
        assert await knows(other, maker.ended(), ALICE)


def test_a_request_names_the_process_that_made_it() -> None:
    api = new_api_id()
    for prefix in ("chatcmpl-", "cmpl-", "resp_"):
        assert made_by(new_request_id(prefix, api)) == api
    assert made_by(RequestId("chatcmpl-1")) is None
    assert made_by(RequestId(f"cmpl-{ApiId('0' * 24)}-0")) is None


def test_what_runs_is_known_as_long_as_it_runs_and_then_as_one_that_ended() -> None:
    """The last ones that ended are known, and no others."""
    timelines, inflight = Timelines(most=2), MagicMock()
    ids = [new_request_id("cmpl-", new_api_id()) for _ in range(3)]
    for id_ in ids:
        timelines.began(id_, ALICE, [inflight])
        assert len((timelines.show(id_, ALICE) or {})["prompts"]) == 1
        timelines.ended(id_, ALICE, [])
        assert (timelines.show(id_, ALICE) or {})["prompts"] == []
    assert [timelines.show(id_, None) is not None for id_ in ids] == [False, True, True]
