"""Pixels in Redis: written once and whole by the API, read by the worker."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisGone

from app.dispatch.media import media_store
from app.dispatch.media.media_store import MediaStore, Samples
from app.errors import DeadlineOver, MediaLost, RequestError, Saturated, StoreDown
from app.ids import KeyId, RequestId, TenantId
from app.messages.media import Media
from app.runner import media as reading
from app.runner.media import fetch_media
from app.tenants.records import NOBODY, Client, Tenant
from tests.background import until_not
from tests.integration.test_dispatch import KEYS, job

A, B = "a" * 64, "b" * 64
DATA = bytes(range(256)) * 9
LEFT_S = 100.0
ALICE, BOB = (Client(Tenant(TenantId("red")), KeyId(name), name) for name in ("alice", "bob"))
CAROL = Client(Tenant(TenantId("blue")), KeyId("carol"), "carol")


def store(redis: "Redis", most: int = 2**30, left_s: float = LEFT_S) -> MediaStore:
    return MediaStore(redis, KEYS, 0.0, most, left_s)


def of(request: str, data: dict[str, bytes], client: Client = NOBODY, **how: Any) -> Samples:
    return Samples(RequestId(request), client, data, 5.0, **how)


async def held(redis: "Redis") -> dict[str, int]:
    """Bytes, by owner."""
    fields = await redis.hgetall(KEYS.media_held()[0])
    owners = {name.decode(): value for name, value in fields.items()}
    return {name: int(value) for name, value in owners.items() if name.partition(":")[0] in ("all", "tenant", "key")}


async def gone(redis: "Redis", *names: str) -> None:
    await until_not(lambda: redis.exists(*map(KEYS.media, names)))


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_store, "_PIECE", 1000)


async def test_what_is_written_is_read_once_for_each_picture(redis: "Redis") -> None:
    """A picture that comes twice has two places, and one value."""
    await store(redis).put(of("one", {A: DATA, B: b"b"}))
    media_job = replace(
        job(), media=[Media("image", A, (1, 768), 3, 2), Media("image", B, ()), Media("image", A, (), 9, 2)]
    )
    inputs = await fetch_media(redis, KEYS, media_job, ("image",))
    assert [(one.media, one.data) for one in inputs] == list(zip(media_job.media, (DATA, b"b", DATA), strict=True))


async def test_half_a_picture_is_written_again_and_a_whole_one_only_lives_longer(redis: "Redis") -> None:
    """A replica may have died while it wrote, or another one may have the same picture."""
    here, key = store(redis), KEYS.media(A)
    await redis.set(key, DATA[:1500], ex=900)
    await here.put(of("one", {A: DATA}))
    assert await redis.get(key) == DATA
    assert await redis.ttl(key) > 800, "a process of an older version needs it for longer"
    await redis.expire(key, 10)
    await here.put(of("two", {A: DATA}))
    assert LEFT_S - 5 <= await redis.ttl(key) <= LEFT_S


async def test_media_are_there_when_each_is_whole(redis: "Redis") -> None:
    """Half of one is what a replica leaves that dies as it writes. A Redis that is away is asked later."""
    here, media = store(redis), [Media("image", A, (1, 768)), Media("embeds", B, (1, 5))]
    await here.put(of("one", {A: DATA, B: b"b"}))
    assert await here.has(media)
    await redis.set(KEYS.media(A), DATA[:1500])
    assert not await here.has(media)
    await redis.delete(KEYS.media(B))
    assert not await here.has(media[1:])
    away = Redis(port=1)
    assert await store(away).has(media)
    await away.aclose()


async def test_a_picture_that_is_gone_ends_the_request_by_name(redis: "Redis") -> None:
    with pytest.raises(MediaLost):
        await fetch_media(redis, KEYS, replace(job(), media=[Media("image", A, ())]), ("image",))


async def test_an_engine_is_not_given_what_it_does_not_take(redis: "Redis") -> None:
    with pytest.raises(RequestError, match="takes no sound"):
        await fetch_media(redis, KEYS, replace(job(), media=[Media("audio", A, ())]), ("image",))


async def test_both_wait_while_redis_is_away(redis: "Redis", monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker as long as it takes, the API within its patience."""
    monkeypatch.setattr(media_store, "_RETRY_S", 0.01)
    monkeypatch.setattr(reading, "RETRY_S", 0.01)
    real, failures = redis.execute_command, [RedisGone(), RedisGone()]

    async def failing(*args: object, **options: object) -> object:
        if failures:
            raise failures.pop()
        return await real(*args, **options)

    await store(redis).put(of("one", {A: DATA}))
    monkeypatch.setattr(redis, "execute_command", failing)
    (media_input,) = await fetch_media(redis, KEYS, replace(job(), media=[Media("image", A, ())]), ("image",))
    assert media_input.data == DATA
    away = Redis(port=1)
    with pytest.raises(StoreDown):
        await MediaStore(away, KEYS, 0.05, 2**30, LEFT_S).put(of("one", {A: DATA}))
    await away.aclose()


async def test_samples_are_gone_with_the_last_request_that_has_them(redis: "Redis") -> None:
    """The last request may be of another process. Bytes that a key has twice are there once."""
    here, there = store(redis), store(redis)
    await here.put(of("one", {A: DATA, B: b"b"}, ALICE))
    await there.put(of("two", {A: DATA}, ALICE))
    await there.put(of("three", {A: DATA}, CAROL))
    size = len(DATA)
    assert await held(redis) == {
        "all": size + 1, "key:alice": size + 1, "key:carol": size, "tenant:red": size + 1, "tenant:blue": size
    }  # fmt: skip
    here.release(RequestId("one"))
    await gone(redis, B)
    assert await held(redis) == {
        "all": size, "key:alice": size, "key:carol": size, "tenant:red": size, "tenant:blue": size
    }  # fmt: skip
    there.release(RequestId("two"))
    there.release(RequestId("three"))
    await gone(redis, A)
    assert not await redis.exists(*KEYS.media_held()[:2])


async def test_a_key_a_tenant_and_all_have_so_many_bytes_at_most(redis: "Redis") -> None:
    """A quarter, a half and the whole. Samples that are there already are no more bytes."""
    here = store(redis, most=4 * len(DATA))
    pictures = {letter * 64: DATA[:-1] + letter.encode() for letter in "abcdef"}
    a, b, c, d, e, _ = ({name: data} for name, data in pictures.items())
    await here.put(of("a", a, ALICE))
    await here.put(of("again", a, ALICE))
    with pytest.raises(Saturated, match="of one API key"):
        await here.put(of("more", b, ALICE))
    await here.put(of("b", b, BOB))
    with pytest.raises(Saturated, match="of one tenant"):
        await here.put(of("more", c, Client(Tenant(TenantId("red")), KeyId("dora"))))
    await here.put(of("c", c, CAROL))
    await here.put(of("d", d))  # where no keys are required
    with pytest.raises(Saturated, match="requests here"):
        await here.put(of("more", e))
    with pytest.raises(RequestError, match="more than the"):
        await here.put(of("never", a | b, ALICE))
    assert await redis.exists(*map(KEYS.media, pictures)) == 4
    assert (await held(redis))["all"] == 4 * len(DATA)


async def test_keys_without_a_tenant_share_none(redis: "Redis") -> None:
    """Two of them would have a half, and leave nothing for all the others."""
    here = store(redis, most=4 * len(DATA))
    for number in range(3):
        await here.put(of(f"{number}", {f"{number}" * 64: DATA}, Client(key=KeyId(f"key{number}"))))
    assert (await held(redis))["all"] == 3 * len(DATA)


async def test_a_request_that_may_wait_waits_for_room(redis: "Redis", monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of a batch wait so."""
    monkeypatch.setattr(media_store, "_ROOM_S", 0.01)
    here = store(redis, most=len(DATA))
    await here.put(of("one", {A: DATA}))
    with pytest.raises(DeadlineOver):
        await here.put(of("two", {B: DATA}, waits=True)._replace(deadline_s=0.05))
    waiting = asyncio.create_task(here.put(of("two", {B: DATA}, waits=True)))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    here.release(RequestId("one"))
    await waiting
    assert await redis.get(KEYS.media(B)) == DATA


async def test_samples_of_a_dead_process_go_unless_another_one_continues(redis: "Redis") -> None:
    """The samples are not in Redis any more, and are counted until somebody looks."""
    here, there = store(redis, left_s=1.0), store(redis)
    await here.put(of("one", {A: DATA}, ALICE))
    await here.put(of("two", {B: DATA}, ALICE))
    here.release(RequestId("two"), continued=True)
    await there.adopt(RequestId("two"))
    await asyncio.sleep(1.2)
    assert (await redis.exists(KEYS.media(A)), await redis.get(KEYS.media(B))) == (0, DATA)
    await there.put(of("three", {}, ALICE))
    assert (await held(redis))["key:alice"] == len(DATA)


async def test_samples_of_a_request_in_progress_are_renewed(redis: "Redis") -> None:
    here = store(redis, left_s=1.0)
    await here.put(of("one", {A: DATA}))
    renewing = asyncio.create_task(here.run())
    await asyncio.sleep(1.5)
    renewing.cancel()
    assert await redis.get(KEYS.media(A)) == DATA
    assert (await held(redis))["all"] == len(DATA)
