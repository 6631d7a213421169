"""Removes what workers that are gone have left: from the prefix index in short steps, by one process at a time."""

import asyncio
import time
from collections.abc import Sequence

from app.dispatch.fleet.fleet_reader import FleetReader
from app.dispatch.fleet.loads import entries
from app.ids import ApiId, PoolId, place_id
from app.keys import Keys
from app.kv.prefix_index import packed
from app.running.loops import keep
from app.store import Command, Wire
from app.store.scripts import FORGET_LOADS, SWEEP_INDEX
from app.telemetry import logger

log = logger(__name__)

_EVERY_S = 10.0
# A number that no lease has for so long belongs to nobody: a worker that starts has one before its lease.
_GONE_S = 60.0
_STEP, _PAUSE_S = 100, 0.005  # entries: Redis does nothing else meanwhile, and one may name a thousand caches
_MOST = 1000  # numbers in one sweep: a script takes so many arguments
_LOCK_S = 60


class IndexSweep:
    def __init__(self, wire: Wire, keys: Keys, api: ApiId, fleet: FleetReader, pools: Sequence[PoolId]) -> None:
        self._wire, self._keys, self._api, self._fleet, self._pools = wire, keys, api, fleet, pools
        self._index = fleet.index.wire
        self._gone: dict[bytes, float] = {}  # packed numbers and places that no lease has, and since when, monotonic

    async def run(self) -> None:
        """Sweeps until cancelled."""
        await keep("index_not_swept", lambda: self.look(time.monotonic()), _EVERY_S, later=True)

    async def look(self, now: float) -> None:
        """Sweeps what has been gone for long enough, if that is this process's part. `now`: monotonic.

        Raises: StoreDown.
        """
        own = [pool for pool in self._pools if await self._is_mine(pool)]
        live = await self._fleet.live(own)
        caches = {packed(n) for lease in live for n in (*lease.caches, *lease.beginnings, *lease.hosts)}
        places = {place_id(lease.worker.id, rank).encode() for lease in live for rank in range(lease.worker.ranks)}
        index_names, loads = [], []
        if own:
            index_names = await self._index.execute([("HKEYS", index[1]) for _, index in self._indices(own)])
            stores = await self._index.execute([("HVALS", self._keys.stores(pool)) for pool in own])
            caches |= {packed(int(number)) for numbers in stores for number in numbers}  # these outlive workers
            read = await self._wire.execute([("HVALS", self._keys.loads(pool)) for pool in own])
            loads = [[name for group in groups for name in entries(group)] for groups in read]
        # With the marks of their writes.
        absent_names = {name for names in index_names for name in names if name[:4] not in caches}
        absent_names |= {name for names in loads for name in names} - places
        self._gone = {name: self._gone.get(name, now) for name in absent_names}
        old = {name for name, since in self._gone.items() if now - since >= _GONE_S}
        for pool, load_names in zip(own, loads, strict=True):
            if leftovers := old.intersection(load_names):
                await self._wire.execute([("EVAL", FORGET_LOADS, 1, self._keys.loads(pool), *leftovers)])
        for (pool, index), numbers in zip(self._indices(own), index_names, strict=True):
            if old_numbers := old.intersection(numbers):
                await self._sweep(pool, index, sorted(old_numbers)[:_MOST])

    def _indices(self, pools: Sequence[PoolId]) -> list[tuple[PoolId, tuple[str, str]]]:
        return [(pool, index) for pool in pools for index in (self._keys.cached(pool), self._keys.tiered(pool))]

    async def _is_mine(self, pool: PoolId) -> bool:
        """Whether no other process sweeps, as far as Redis knows: without memory it lets nobody say so."""
        key = self._keys.sweeping(pool)
        claim: list[Command] = [("SET", key, self._api, "NX", "EX", _LOCK_S), ("GET", key)]
        _, holder = await self._wire.execute_each(claim)
        if holder == self._api.encode():
            await self._wire.execute([("EXPIRE", key, _LOCK_S)])
        return holder is None or holder == self._api.encode()

    async def _sweep(self, pool: PoolId, index: tuple[str, str], caches: Sequence[bytes]) -> None:
        cursor = b"0"
        while True:
            step = ("EVAL", SWEEP_INDEX, 2, *index, cursor, _STEP, *caches)
            (cursor,) = await self._index.execute([step])
            await self._wire.execute([("EXPIRE", self._keys.sweeping(pool), _LOCK_S)])
            if cursor == b"0":
                break
            await asyncio.sleep(_PAUSE_S)
        log.info("index_swept", pool=pool, caches=len(caches))
