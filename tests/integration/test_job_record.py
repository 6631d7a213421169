"""A request's record, and a Redis that is away when a worker wants it."""

from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from app.messages import encode
from app.runner import job_record as record
from tests.integration.test_dispatch import KEYS, job


async def test_a_record_is_waited_for_while_redis_is_away(redis: "Redis", monkeypatch: Any) -> None:
    """Without it nobody could be told of the request."""
    asked = job()
    await redis.set(KEYS.request(asked.run), encode(asked))
    real, failures = redis.get, [RedisConnectionError(), OSError()]

    async def get(key: str) -> Any:
        if failures:
            raise failures.pop()
        return await real(key)

    monkeypatch.setattr(record, "RETRY_S", 0.01)
    monkeypatch.setattr(redis, "get", get)
    assert await record.fetch(redis, KEYS, asked.run) == asked
    assert not failures


async def test_no_record_and_one_that_is_not_understood_are_none(redis: "Redis") -> None:
    run = job().run
    assert await record.fetch(redis, KEYS, run) is None
    await redis.set(KEYS.request(run), b"\xc1")
    assert await record.fetch(redis, KEYS, run) is None
