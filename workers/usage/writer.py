"""Takes records of usage from their stream in Redis and writes them to SQL: one process at a time.

What is written is deleted from the stream then. Whatever dies in between, a record that comes again is known by its id.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from app.ids import new_api_id
from app.keys import Keys
from app.loops import keep
from app.store import LEAD, Command, Wire
from app.telemetry import logger
from app.tenants.records import Price, decode_price
from app.usage.database import UsageDatabase
from app.usage.record import UsageRecord, decode_usage

log = logger(__name__)

_EVERY_S = 1.0
_LEADER_MS = 5000  # how long the leader leads without renewal; two of them do each other no harm
_ENTRIES = 500  # that are taken at once


class UsageWriter:
    def __init__(self, wire: Wire, keys: Keys, database: UsageDatabase) -> None:
        self._wire, self._database = wire, database
        self._stream, self._prices = keys.usage(), keys.prices()
        self._lead: Command = ("EVAL", LEAD, 1, keys.usage_leader(), new_api_id(), _LEADER_MS)

    async def run(self) -> None:
        """Until cancelled."""
        await keep("usage_not_written", self._write_all, _EVERY_S)

    async def _write_all(self) -> None:
        """Raises: StoreDown, UsageDown."""
        while await self.write():
            pass

    async def write(self) -> bool:
        """Writes the oldest entries; whether there may be more. Raises: StoreDown, UsageDown."""
        read: list[Command] = [("XRANGE", self._stream, "-", "+", "COUNT", _ENTRIES), ("HGETALL", self._prices)]
        leads, entries, raw_prices = await self._wire.execute([self._lead, *read])
        if not leads or not entries:
            return False
        records = [record for _, (_, raw) in entries for record in _records(raw)]
        prices = _prices(raw_prices[::2], raw_prices[1::2])
        await asyncio.to_thread(self._database.write, records, prices)
        await self._wire.execute([("XDEL", self._stream, *(id_ for id_, _ in entries))])
        return len(entries) == _ENTRIES


def _records(raw: bytes) -> list[UsageRecord]:
    try:
        return decode_usage(raw)
    except msgspec.DecodeError as exc:  # kept, it would hold up all others
        log.error("usage_not_understood", error=str(exc))
        return []


def _prices(models: Sequence[bytes], raws: Sequence[bytes]) -> dict[str, Price]:
    found = {}
    for model, raw in zip(models, raws, strict=True):
        try:
            found[model.decode()] = decode_price(raw)
        except msgspec.DecodeError as exc:
            log.error("price_not_understood", model=model.decode(), error=str(exc))
    return found
