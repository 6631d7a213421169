"""The samples of a job's pictures, sound and embeddings, as the API replica wrote them."""

import asyncio
from collections.abc import Collection
from typing import cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from app.engines.base import MediaInput
from app.errors import MediaLost, RequestError
from app.keys import Keys
from app.messages.job import Job
from app.messages.media import MEDIA_NAMES, Media, MediaKind
from app.runner.job_record import RETRY_S
from app.telemetry import logger

log = logger(__name__)


async def fetch_media(redis: "Redis", keys: Keys, job: Job, takes: Collection[MediaKind]) -> list[MediaInput]:
    """`takes`: the engine's kinds. Raises: RequestError for others, MediaLost."""
    for media in job.media:
        if media.kind not in takes:
            raise RequestError(f"This model's engine takes no {MEDIA_NAMES[media.kind]}.")
    data = {one.sha256: await _read(redis, keys, job, one) for one in {one.sha256: one for one in job.media}.values()}
    return [MediaInput(media, data[media.sha256]) for media in job.media]


async def _read(redis: "Redis", keys: Keys, job: Job, media: Media) -> bytes:
    """Waits while Redis is unreachable, as for the request's record. Raises: MediaLost."""
    while True:
        try:
            data = await redis.get(keys.media(media.sha256))
        except (RedisError, OSError) as exc:
            log.warning("media_not_read", run=job.run, **job.names, error=repr(exc))
            await asyncio.sleep(RETRY_S)
            continue
        if data is None:
            raise MediaLost
        return cast(bytes, data)
