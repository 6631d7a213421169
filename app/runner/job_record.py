"""A request's record, as the API replica wrote it."""

import asyncio
from typing import cast

import msgspec

from app.errors import StoreDown
from app.ids import RunId
from app.keys import Keys
from app.messages.job import Job, decode_job
from app.store import Wire
from app.telemetry import logger

log = logger(__name__)
RETRY_S = 0.2


async def fetch(wire: Wire, keys: Keys, run: RunId) -> Job | None:
    """None when nobody awaits it. Waits while Redis is unreachable: without the record no replica could be told."""
    while True:
        try:
            (record,) = cast(list[bytes | None], await wire.execute([("GET", keys.request(run))]))
        except StoreDown as exc:
            log.warning("record_not_read", run=run, error=exc.message)
            await asyncio.sleep(RETRY_S)
        else:
            break
    try:
        return decode_job(record) if record is not None else None
    except msgspec.DecodeError as exc:  # of another version: the request ends at its deadline
        log.error("record_not_understood", run=run, error=str(exc))
        return None
