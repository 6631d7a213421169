"""Takes records of usage from their stream in Redis and writes them to SQL: one process at a time.

What is written is deleted from the stream then. Whatever dies in between, a record that comes again is known by its id.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from app.ids import new_api_id
from app.keys import Keys
from app.running.loops import keep
from app.store import Command, Wire
from app.store.handling import Handling
from app.store.scripts import LEAD
from app.telemetry import logger
from app.tenants.records import Price, decode_price
from app.usage.database import UsageDatabase
from app.usage.record import UsageRecord, decode_usage

log = logger(__name__)

_EVERY_S = 1.0
_LEADER_MS = 5000  # how long the leader leads without renewal; two of them do each other no harm
_ENTRIES = 500  # that are taken at once
_CUT = 2  # writers that died with some entries, after which these are written one after the other

_Entry = tuple[bytes, list[bytes]]  # its id, and its fields, each with its value behind it


class UsageWriter:
    def __init__(self, wire: Wire, keys: Keys, database: UsageDatabase, most_deaths: int = 3) -> None:
        """`most_deaths`: of writers that had just begun with an entry, before it is set aside."""
        self._handling, self._most_deaths, self._aside = Handling(wire, keys), most_deaths, keys.usage_aside()
        self._wire, self._database = wire, database
        self._stream, self._prices = keys.usage(), keys.prices()
        self._lead: Command = ("EVAL", LEAD, 1, keys.usage_leader(), new_api_id(), _LEADER_MS)

    async def run(self) -> None:
        """Writes usage again and again, until cancelled."""
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
        prices = _prices(raw_prices[::2], raw_prices[1::2])
        async with self._handling.of("usage") as handling:
            if handling.deaths < _CUT:
                await self._move(entries, prices)
            else:
                for entry in entries:
                    await self._move_alone(entry, prices)
            handling.done = True
        return len(entries) == _ENTRIES

    async def _move(self, entries: Sequence[_Entry], prices: dict[str, Price]) -> None:
        """Moves entries from the stream to SQL. Raises: StoreDown, UsageDown."""
        records = [record for _, fields in entries for record in _records(_value(fields))]
        await asyncio.to_thread(self._database.write, records, prices)
        await self._wire.execute([("XDEL", self._stream, *(id_ for id_, _ in entries))])

    async def _move_alone(self, entry: _Entry, prices: dict[str, Price]) -> None:
        """One that may end this process; too many ends set it aside. Raises: StoreDown, UsageDown."""
        id_, fields = entry
        async with self._handling.of(f"usage:{id_.decode()}", alone=True) as handling:
            if handling.deaths > self._most_deaths:
                log.error("usage_set_aside", entry=id_.decode(), deaths=handling.deaths)
                aside: Command = ("XADD", self._aside, "MAXLEN", "~", _ENTRIES, "*", "b", _value(fields))
                await self._wire.execute([aside, ("XDEL", self._stream, id_)])
            else:
                await self._move([entry], prices)
            handling.done = True


def _value(fields: list[bytes]) -> bytes:
    """The value that has the records; empty if an entry of another version has none."""
    return dict(zip(fields[::2], fields[1::2], strict=True)).get(b"b", b"")


def _records(raw: bytes) -> list[UsageRecord]:
    try:
        return decode_usage(raw)
    except msgspec.DecodeError as exc:  # kept, it would hold up all others
        log.error("usage_not_understood", error=str(exc))
        return []


def _prices(models: Sequence[bytes], raws: Sequence[bytes]) -> dict[str, Price]:
    prices = {}
    for model, raw in zip(models, raws, strict=True):
        try:
            prices[model.decode()] = decode_price(raw)
        except msgspec.DecodeError as exc:
            log.error("price_not_understood", model=model.decode(), error=str(exc))
    return prices
