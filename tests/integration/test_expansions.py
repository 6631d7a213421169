"""What media become, asked of workers: against a real Redis."""

import asyncio
from collections.abc import Sequence

import pytest
from redis.asyncio import Redis

from app.bounded.turns import CLIENT
from app.dispatch import expansions
from app.dispatch.expansions import Expansions, Shown
from app.dispatch.fleet_reader import FleetReader
from app.errors import NoWorker, RequestError, Saturated
from app.ids import WorkerId
from app.messages import ExpandMedia, MediaSign, Reply, decode_worker_command, encode
from app.pools import Pool
from app.store import Wire
from tests.background import beside
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
    told: list[ExpandMedia] = []
    async with beside(tells(redis, "a", told)):
        known = reader(redis, wire)
        assert (await known.signs(POOLS))["image"] == SIGN
        assert await asyncio.gather(*(learned(known) for _ in range(5))) == [[7, 7, 9]] * 5
        assert await learned(reader(redis, wire)) == [7, 7, 9], "another replica reads it"
        assert len(told) == 1
        assert await learned(known, Shown(SIGN, (480, 641))) == [7, 7, 9]
        assert [(one.kind, one.shape, one.number) for one in told] == [
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
    """Nor for a size that is in that client's line as well; and only its own line gets too long."""
    await register(redis, KEYS, "a", signs=[SIGN])
    known, told, learnt = reader(redis, wire), list[ExpandMedia](), list[str]()
    await known.signs(POOLS)

    async def ask(client: str, width: int) -> None:
        CLIENT.set(client)
        await known.tokens(Shown(SIGN, (1, width)), POOLS)
        learnt.append(client)

    many = [asyncio.create_task(ask("red", width)) for width in range(1, 80)]
    other = asyncio.create_task(ask("blue", 60))
    await asyncio.sleep(0)
    async with beside(tells(redis, "a", told)):
        await asyncio.wait_for(other, 20)
        assert learnt.index("blue") < 12
        ended = await asyncio.gather(*many, return_exceptions=True)
    refused = [one for one in ended if one is not None]
    assert 0 < len(refused) < 20
    assert all(isinstance(one, Saturated) for one in refused)
    assert len(told) == 79 - len(refused)


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
    """While a change rolls through a pool: what most of them do counts, and each replica says the same."""
    other = MediaSign("image", "other", "<picture>", (7,))
    told: list[ExpandMedia] = []
    await register(redis, KEYS, "old", signs=[other])
    for worker in "ab":
        await register(redis, KEYS, worker, signs=[SIGN])
    async with beside(tells(redis, "a", told)), beside(tells(redis, "b", told)):
        known = reader(redis, wire)
        assert await known.signs(POOLS) == {"image": SIGN}
        assert await learned(known) == [7, 7, 9]


async def test_a_real_answer_corrects_it_for_all(redis: "Redis", wire: Wire) -> None:
    await register(redis, KEYS, "a", signs=[SIGN])
    known, other = reader(redis, wire), Shown(SIGN, (1, 1))
    async with beside(tells(redis, "a", [])):
        await learned(known)
        await learned(known, other)
        known.correct_soon([(ASKED, [8, 8]), (other, None)])
        async with asyncio.timeout(10):
            while await redis.hexists(KEYS.expansions(SIGN.digest), other.field):  # type: ignore[misc]  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await learned(known) == [8, 8]
        assert await learned(reader(redis, wire)) == [8, 8]


async def test_redis_holds_so_many_of_a_model(redis: "Redis", wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients may send as many sizes as they like."""
    monkeypatch.setattr(expansions, "MOST", 3)
    await register(redis, KEYS, "a", signs=[SIGN])
    known = reader(redis, wire)
    async with beside(tells(redis, "a", [])):
        for width in range(10):
            await learned(known, Shown(SIGN, (1, width + 1)))
    assert await redis.hlen(KEYS.expansions(SIGN.digest)) == 3  # type: ignore[misc]
    assert await redis.ttl(KEYS.expansions(SIGN.digest)) > 0
