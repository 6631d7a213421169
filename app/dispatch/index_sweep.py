"""Removes caches that are gone from the prefix index: in short steps, by one process at a time."""

import asyncio
import time
from collections.abc import Sequence

from app.dispatch.fleet_reader import FleetReader
from app.errors import StoreDown
from app.ids import ApiId, PoolId
from app.keys import Keys
from app.kv.prefix_index import packed
from app.store import SWEEP_INDEX, Wire
from app.telemetry import logger

log = logger(__name__)

_EVERY_S = 10.0
# A number that no lease has for so long belongs to nobody: a worker that starts has one before its lease.
_GONE_S = 60.0
_STEP, _PAUSE_S = 500, 0.02  # entries: Redis does nothing else for half a millisecond
_LOCK_S = 60


class IndexSweep:
    def __init__(self, wire: Wire, keys: Keys, api: ApiId, fleet: FleetReader, pools: Sequence[PoolId]) -> None:
        self._wire, self._keys, self._api, self._fleet, self._pools = wire, keys, api, fleet, pools
        self._gone: dict[bytes, float] = {}  # packed numbers that no lease has, and since when, monotonic

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                await self.look(time.monotonic())
            except StoreDown as exc:
                log.warning("index_not_swept", error=exc.message)
            except Exception:
                log.exception("index_not_swept")

    async def look(self, now: float) -> None:
        """Sweeps what has been gone for long enough; `now`: monotonic. Raises: StoreDown."""
        counted = await self._wire.execute([("HKEYS", self._keys.cached(pool)[1]) for pool in self._pools])
        live = {packed(n) for lease in await self._fleet.live(self._pools) for n in lease.caches}
        gone = {number for numbers in counted for number in numbers} - live
        self._gone = {number: self._gone.get(number, now) for number in gone}
        for pool, numbers in zip(self._pools, counted, strict=True):
            old = [n for n in numbers if n in gone and now - self._gone[n] >= _GONE_S]
            if old and await self._is_mine(pool):
                await self._sweep(pool, old)

    async def _is_mine(self, pool: PoolId) -> bool:
        key = self._keys.sweeping(pool)
        _, holder = await self._wire.execute([("SET", key, self._api, "NX", "EX", _LOCK_S), ("GET", key)])
        return bool(holder == self._api.encode())

    async def _sweep(self, pool: PoolId, gone: Sequence[bytes]) -> None:
        cursor = b"0"
        while True:
            step = ("EVAL", SWEEP_INDEX, 2, *self._keys.cached(pool), cursor, _STEP, *gone)
            cursor, _ = await self._wire.execute([step, ("EXPIRE", self._keys.sweeping(pool), _LOCK_S)])
            if cursor == b"0":
                break
            await asyncio.sleep(_PAUSE_S)
        log.info("index_swept", pool=pool, caches=len(gone))
