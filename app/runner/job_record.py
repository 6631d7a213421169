"""A request's record, as the API replica wrote it."""

import asyncio
from typing import cast

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from app.ids import RunId
from app.keys import Keys
from app.messages import Job, decode_job
from app.telemetry import logger

log = logger(__name__)
RETRY_S = 0.2


async def fetch(redis: "Redis", keys: Keys, run: RunId) -> Job | None:
    """None when nobody awaits it. Waits while Redis is unreachable: without the record no replica could be told."""
    while True:
        try:
            record = cast(bytes | None, await redis.get(keys.request(run)))
        except (RedisError, OSError) as exc:
            log.warning("record_not_read", run=run, error=repr(exc))
            await asyncio.sleep(RETRY_S)
        else:
            break
    try:
        return decode_job(record) if record is not None else None
    except msgspec.DecodeError as exc:  # of another version: the request ends at its deadline
        log.error("record_not_understood", run=run, error=str(exc))
        return None
