"""Tests the expansions of media, asked of workers, with a real Redis."""

import asyncio
from collections.abc import Sequence

import pytest
from redis.asyncio import Redis

from app.bounded.turns import CLIENT
from app.dispatch.fleet.fleet_reader import FleetReader
from app.dispatch.media import expansions
from app.dispatch.media.expansions import Expansions, Shown
from app.errors import NoWorker, RequestError, Saturated
from app.ids import WorkerId
from app.messages.commands import ExpandMedia, Reply, decode_worker_command
from app.messages.media import MediaSign
from app.messages.wire import encode
from app.pools.schema import Pool
from app.store import Wire
from tests.background import beside, until_not
from tests.integration.conftest import POOL, register
from tests.integration.test_dispatch import KEYS

SIGN = MediaSign("image", "digest", "<picture>", (7,), most=64)
ASKED = Shown(SIGN, (480, 640))
POOLS = [POOL]


def reader(redis: "Redis", wire: Wire) -> Expansions:
    return Expansions(redis, wire, KEYS, FleetReader(wire, KEYS, {POOL: Pool(model="m", engine="mock")}, 100))


async def tells(redis: "Redis", worker: str, told: list[ExpandMedia], **reply: object) -> None:
    """A worker that answers each question."""
    while True:
        _, raw = await redis.blpop([KEYS.commands(WorkerId(worker))])  # type: ignore[misc]
        command = decode_worker_command(raw)
        assert isinstance(command, ExpandMedia)
        told.append(command)
        fields = {"done": True, "expansion": [7, 7, 9]} | reply
        await redis.rpush(KEYS.reply(command.id), encode(Reply(WorkerId(worker), **fields)))  # type: ignore[arg-type, misc]


async def learned(known: Expansions, shown: Shown = ASKED) -> Sequence[int]:
    await known.signs(POOLS)
    await known.look([shown])
    return await known.tokens(shown, POOLS)


async def test_a_size_is_asked_once_for_all_requests_and_replicas(redis: "Redis", wire: Wire) -> None:
    await register(redis, KEYS, "a", signs=[SIGN])
    commands: list[ExpandMedia] = []
    async with beside(tells(redis, "a", commands)):
        expansion_reader = reader(redis, wire)
        assert (await expansion_reader.signs(POOLS))["image"] == SIGN
        assert await asyncio.gather(*(learned(expansion_reader) for _ in range(5))) == [[7, 7, 9]] * 5
        assert await learned(reader(redis, wire)) == [7, 7, 9], "another replica reads it"
        assert len(commands) == 1
        assert await learned(expansion_reader, Shown(SIGN, (480, 641))) == [7, 7, 9]
        assert [(one.kind, one.shape, one.number) for one in commands] == [
            ("image", (480, 640), 0),
            ("image", (480, 641), 0),
        ]


async def test_a_worker_that_is_busy_is_asked_no_more_but_another_one_is(redis: "Redis", wire: Wire) -> None:
    for worker in "ab":
        await register(redis, KEYS, worker, signs=[SIGN])
    busy: list[ExpandMedia] = []
    good: list[ExpandMedia] = []
    async with beside(tells(redis, "a", busy, done=False, reason="busy")), beside(tells(redis, "b", good)):
        for width in range(8):
            assert await learned(reader(redis, wire), Shown(SIGN, (1, 640 + width))) == [7, 7, 9]
    assert len(good) == 8


async def test_a_client_with_many_new_sizes_has_no_other_wait_behind_them(redis: "Redis", wire: Wire) -> None:
    """No other waits for a size that is in that client's line as well; and only its own line gets too long."""
    await register(redis, KEYS, "a", signs=[SIGN])
    expansion_reader, commands, learnt = reader(redis, wire), list[ExpandMedia](), list[str]()
    await expansion_reader.signs(POOLS)

    async def ask(client: str, width: int) -> None:
        CLIENT.set(client)
        await expansion_reader.tokens(Shown(SIGN, (1, width)), POOLS)
        learnt.append(client)

    many = [asyncio.create_task(ask("red", width)) for width in range(1, 80)]
    other = asyncio.create_task(ask("blue", 60))
    await asyncio.sleep(0)
    async with beside(tells(redis, "a", commands)):
        await asyncio.wait_for(other, 20)
        assert learnt.index("blue") < 12
        outcomes = await asyncio.gather(*many, return_exceptions=True)
    refusals = [one for one in outcomes if one is not None]
    assert 0 < len(refusals) < 20
    assert all(isinstance(one, Saturated) for one in refusals)
    assert len(commands) == 79 - len(refusals)


async def test_a_shape_that_the_model_refuses_is_the_requests_fault(redis: "Redis", wire: Wire) -> None:
    await register(redis, KEYS, "a", signs=[SIGN])
    async with beside(tells(redis, "a", [], done=False, reason="it is too long", refused=True)):
        with pytest.raises(RequestError, match="it is too long"):
            await learned(reader(redis, wire))
    assert not await redis.exists(KEYS.expansions(SIGN.digest))


async def test_without_a_worker_that_can_tell_there_is_no_answer(redis: "Redis", wire: Wire) -> None:
    with pytest.raises(NoWorker):
        await reader(redis, wire).signs(POOLS)
    await register(redis, KEYS, "blind")
    assert await reader(redis, wire).signs(POOLS) == {}
    with pytest.raises(NoWorker):
        await learned(reader(redis, wire))


async def test_workers_that_expand_otherwise_are_not_asked(redis: "Redis", wire: Wire) -> None:
    """A change is rolling through a pool: what most workers do counts, and each replica says the same."""
    other = MediaSign("image", "other", "<picture>", (7,))
    commands: list[ExpandMedia] = []
    await register(redis, KEYS, "old", signs=[other])
    for worker in "ab":
        await register(redis, KEYS, worker, signs=[SIGN])
    async with beside(tells(redis, "a", commands)), beside(tells(redis, "b", commands)):
        expansion_reader = reader(redis, wire)
        assert await expansion_reader.signs(POOLS) == {"image": SIGN}
        assert await learned(expansion_reader) == [7, 7, 9]


async def test_a_real_answer_corrects_it_for_all(redis: "Redis", wire: Wire) -> None:
    await register(redis, KEYS, "a", signs=[SIGN])
    expansion_reader, other = reader(redis, wire), Shown(SIGN, (1, 1))
    async with beside(tells(redis, "a", [])):
        await learned(expansion_reader)
        await learned(expansion_reader, other)
        expansion_reader.correct_soon([(ASKED, [8, 8]), (other, None)])
        await until_not(lambda: redis.hexists(KEYS.expansions(SIGN.digest), other.field))
        assert await learned(expansion_reader) == [8, 8]
        assert await learned(reader(redis, wire)) == [8, 8]


async def test_redis_holds_so_many_of_a_model(redis: "Redis", wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients may send as many sizes as they like."""
    monkeypatch.setattr(expansions, "MOST", 3)
    await register(redis, KEYS, "a", signs=[SIGN])
    expansion_reader = reader(redis, wire)
    async with beside(tells(redis, "a", [])):
        for width in range(10):
            await learned(expansion_reader, Shown(SIGN, (1, width + 1)))
    assert await redis.hlen(KEYS.expansions(SIGN.digest)) == 3  # type: ignore[misc]
    assert await redis.ttl(KEYS.expansions(SIGN.digest)) > 0
