"""A request's record, and a Redis that is away when a worker wants it."""

from typing import Any

from redis.asyncio import Redis

from app.errors import StoreDown
from app.messages.wire import encode
from app.runner import job_record as record
from app.store import Wire
from tests.integration.test_dispatch import KEYS, job


async def test_a_record_is_waited_for_while_redis_is_away(redis: "Redis", wire: Wire, monkeypatch: Any) -> None:
    """Nobody could be told of the request without it."""
    stored_job = job()
    await redis.set(KEYS.request(stored_job.run), encode(stored_job))
    real, failures = wire.execute, [StoreDown("away"), StoreDown("away")]

    async def execute(commands: Any) -> Any:
        if failures:
            raise failures.pop()
        return await real(commands)

    monkeypatch.setattr(record, "RETRY_S", 0.01)
    monkeypatch.setattr(wire, "execute", execute)
    assert await record.fetch(wire, KEYS, stored_job.run) == stored_job
    assert not failures


async def test_no_record_and_one_that_is_not_understood_are_none(redis: "Redis", wire: Wire) -> None:
    run = job().run
    assert await record.fetch(wire, KEYS, run) is None
    await redis.set(KEYS.request(run), b"\xc1")
    assert await record.fetch(wire, KEYS, run) is None
