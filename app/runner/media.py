"""The samples of a job's pictures, sound and embeddings: in Redis, or held by the API replica that awaits it."""

import asyncio
from collections.abc import Collection
from typing import cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from app.engines.base import MediaInput
from app.errors import MediaLost, RequestError
from app.keys import Keys
from app.messages.held import HeldSamples
from app.messages.job import Job
from app.messages.media import MEDIA_NAMES, MediaKind
from app.runner.held_media import collect
from app.runner.job_record import RETRY_S
from app.telemetry import logger

log = logger(__name__)

_TRIES = 3


async def fetch_media(redis: "Redis", keys: Keys, job: Job, takes: Collection[MediaKind]) -> list[MediaInput]:
    """`takes`: the engine's kinds. Raises: RequestError for others, MediaLost."""
    for media in job.media:
        if media.kind not in takes:
            raise RequestError(f"This model's engine takes no {MEDIA_NAMES[media.kind]}.")
    data: dict[str, bytes | bytearray] = {}
    names = dict.fromkeys(one.sha256 for one in job.media)
    if job.held is not None and (large := [name for name in names if name in job.held.sizes]):
        data |= await _collected(job, job.held, large)
    for name in names.keys() - data.keys():
        data[name] = await _read(redis, keys, job, name)
    return [MediaInput(media, data[media.sha256]) for media in job.media]


async def _collected(job: Job, offer: HeldSamples, names: Collection[str]) -> dict[str, bytearray]:
    """Tries a few times, then the API replica may place the job elsewhere. Raises: MediaLost."""
    for tries in range(1, _TRIES + 1):
        try:
            return await collect(offer, names)
        except OSError as exc:
            at = f"{offer.host}:{offer.port}"
            log.warning("media_not_collected", run=job.run, **job.names, at=at, tries=tries, error=repr(exc))
        await asyncio.sleep(RETRY_S)
    raise MediaLost


async def _read(redis: "Redis", keys: Keys, job: Job, name: str) -> bytes:
    """Waits while Redis is unreachable, as for the request's record. Raises: MediaLost."""
    while True:
        try:
            data = await redis.get(keys.media(name))
        except (RedisError, OSError) as exc:
            log.warning("media_not_read", run=job.run, **job.names, error=repr(exc))
            await asyncio.sleep(RETRY_S)
            continue
        if data is None:
            raise MediaLost
        return cast(bytes, data)
