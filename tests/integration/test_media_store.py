"""Pixels in Redis: written once and whole by the API, read by the worker."""

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisGone

from app.dispatch import media_store
from app.dispatch.media_store import MediaStore
from app.errors import MediaLost, RequestError, StoreDown
from app.messages import Media
from app.runner import media as reading
from app.runner.media import fetch_media
from tests.integration.test_dispatch import KEYS, job

A, B = "a" * 64, "b" * 64
DATA = bytes(range(256)) * 9


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_store, "_PIECE", 1000)


async def test_what_is_written_is_read_once_for_each_picture(redis: "Redis") -> None:
    """A picture that comes twice has two places, and one value."""
    await MediaStore(redis, KEYS).put({A: DATA, B: b"b"}, 5.0)
    asked = replace(
        job(), media=[Media("image", A, (1, 768), 3, 2), Media("image", B, ()), Media("image", A, (), 9, 2)]
    )
    found = await fetch_media(redis, KEYS, asked, ("image",))
    assert [(one.media, one.data) for one in found] == list(zip(asked.media, (DATA, b"b", DATA), strict=True))


async def test_half_a_picture_is_written_again_and_a_whole_one_only_lives_longer(redis: "Redis") -> None:
    """As when a replica died while it wrote, or another one has the same picture."""
    store, key = MediaStore(redis, KEYS), KEYS.media(A)
    await redis.set(key, DATA[:1500], ex=900)
    await store.put({A: DATA}, 5.0)
    assert await redis.get(key) == DATA
    assert await redis.ttl(key) > 800, "another request needs it for longer"
    await redis.expire(key, 10)
    await store.put({A: DATA}, 100.0)
    assert 120 <= await redis.ttl(key) <= 130


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

    await MediaStore(redis, KEYS).put({A: DATA}, 5.0)
    monkeypatch.setattr(redis, "execute_command", failing)
    (found,) = await fetch_media(redis, KEYS, replace(job(), media=[Media("image", A, ())]), ("image",))
    assert found.data == DATA
    away = Redis(port=1)
    with pytest.raises(StoreDown):
        await MediaStore(away, KEYS, patience_s=0.05).put({A: DATA}, 5.0)
    await away.aclose()
