"""The leases of the pools' workers, as this process last read them; only those that have changed are read again.

What a lease says of load and speeds is as old as the last `refresh`.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec
from msgspec.structs import replace

from app.dispatch.fleet.pool_fleet import PoolFleet
from app.ids import PoolId, WorkerId
from app.intervals import Intervals
from app.keys import Keys
from app.kv.groups import grids_of
from app.messages.lease import Lease, decode_lease
from app.messages.media import MediaKind
from app.messages.wire import WIRE_VERSION
from app.pools.schema import Pool
from app.store import Command, Wire
from app.telemetry import logger

log = logger(__name__)

# How seldom a process reads all leases when others look, too: for the speeds and loads that they tell.
_REFRESH_S, _REFRESH_S_PER_WORKER = 2.0, 0.015
_FEW = 100  # workers; of more, whether all have leases is counted, which takes a quarter of the time of reading these
_CLAIM = 0.8  # of the time between two looks, for which one process has claimed to read them: timers are not exact


class FleetLeases:
    def __init__(
        self,
        wire: Wire,
        keys: Keys,
        pools: Mapping[PoolId, Pool],
        look_s: float = Intervals().look_s,
        token_redis: int = 0,
        *,
        broker_apart: bool = False,
    ) -> None:
        """`look_s`: how often some process of the deployment is to look whether all workers have leases.

        `token_redis`: `Job.token_redis` of this process's jobs.
        """
        self._token_redis, self._broker_apart = token_redis, broker_apart
        self._claim_ms = max(1, round(look_s * 1000 * _CLAIM))
        self._wire, self._keys = wire, keys
        self._models = {name: pool.model for name, pool in pools.items()}
        self._misfits: dict[WorkerId, str] = {}  # as last told
        # What prompts are hashed by: as most workers had it in the last read, and the pool's own before.
        self.grids = grids_of(pools)
        self._fleets = {name: PoolFleet() for name in pools}
        self._refreshed = dict.fromkeys(pools, -math.inf)  # by `answered`, monotonic

    async def refresh(self, pools: Sequence[PoolId]) -> None:
        """Reads all leases of these pools. Raises: StoreDown."""
        keys = self._keys
        questions = [(("ZRANGE", keys.changed(p), -1, -1, "WITHSCORES"), ("HKEYS", keys.pool(p))) for p in pools]
        replies = await self._wire.execute(list(chain.from_iterable(questions)))
        members = {
            pool: [WorkerId(w.decode()) for w in reply] for pool, reply in zip(pools, replies[1::2], strict=True)
        }
        leases = await self._read_leases([worker for workers in members.values() for worker in workers])
        for pool, last in zip(pools, replies[::2], strict=True):
            fleet = self._fleets[pool]
            fleet.known = float(last[1]) if last else 0.0
            fleet.members = set(members[pool])
            fleet.lapsed = {worker for worker in members[pool] if worker not in leases}
            self._set(pool, {worker: leases.get(worker) for worker in members[pool]})

    def questions(self) -> list[Command]:
        """Commands of one look: which leases have changed, and whether this process is the one that looks at all."""
        return [
            c
            for pool, fleet in self._fleets.items()
            for c in (fleet.changes(self._keys.changed(pool)), self._claim(pool))
        ]

    async def answered(self, replies: Sequence[Any], now: float) -> None:
        """The replies to `questions`; `now`: monotonic. Reads leases. Raises: StoreDown."""
        claims = dict(zip(self._fleets, replies[1::2], strict=True))
        due = [
            pool
            for pool, fleet in self._fleets.items()
            if fleet.known < 0
            or (claims[pool] == b"OK" and len(fleet.members) <= _FEW)
            or now - self._refreshed[pool] >= max(_REFRESH_S, _REFRESH_S_PER_WORKER * len(fleet.members))
        ]
        await self.refresh(due)
        changes = dict(zip(self._fleets, replies[::2], strict=True))
        await self._take({pool: entries for pool, entries in changes.items() if pool not in due})
        others = await self._with_others([pool for pool in self._fleets if claims[pool] == b"OK" and pool not in due])
        await self.refresh(others)
        self._refreshed |= dict.fromkeys([*due, *others], now)

    async def _with_others(self, pools: Sequence[PoolId]) -> list[PoolId]:
        """Pools with other members than this process knows, or one without a lease. Raises: StoreDown."""
        known_workers = {pool: self._fleets[pool].members for pool in pools if self._fleets[pool].members}
        commands = [
            (("HLEN", self._keys.pool(pool)), ("EXISTS", *map(self._keys.worker, workers)))
            for pool, workers in known_workers.items()
        ]
        replies = await self._wire.execute(list(chain.from_iterable(commands)))
        counts = zip(known_workers.items(), replies[::2], replies[1::2], strict=True)
        return [pool for (pool, workers), members, live in counts if not members == live == len(workers)]

    def forget(self, pools: Sequence[PoolId]) -> None:
        """Forgets what is known of the pools' workers, since it is wrong: the next read reads them all."""
        for pool in pools:
            self._fleets[pool].known = -1.0

    async def live(self, pools: Sequence[PoolId]) -> list[Lease]:
        """The leases of the pools' live workers. Raises: StoreDown."""
        await self.refresh(pools)
        return [lease for pool in pools for lease in self._fleets[pool].leases.values()]

    def leases(self, pools: Iterable[PoolId]) -> dict[WorkerId, Lease]:
        """Returns those of the pools' workers, as of the last look."""
        return {worker: lease for pool in pools for worker, lease in self._fleets[pool].leases.items()}

    def has_worker(self, pools: Collection[PoolId]) -> bool:
        """Whether any of the pools has one, as of the last look; also if nobody has looked yet."""
        fleets = [self._fleets[pool] for pool in pools]
        return any(fleet.leases or fleet.known < 0 for fleet in fleets)

    def takes(self, pools: Collection[PoolId], kind: MediaKind) -> bool:
        """Whether any of their workers takes it in prompts, as of the last look; also if none is known."""
        workers = [lease.worker for pool in pools for lease in self._fleets[pool].leases.values()]
        return not workers or any(kind in worker.takes for worker in workers)

    def collects(self) -> bool:
        """Whether all workers collect large samples, as of the last look: those of older versions don't."""
        return all(lease.worker.collects for fleet in self._fleets.values() for lease in fleet.leases.values())

    def missing(self, workers: Mapping[WorkerId, PoolId]) -> dict[WorkerId, PoolId]:
        """Workers without a lease that is understood, as of the last look: those that requests are on, and members."""
        leased_workers = {worker for fleet in self._fleets.values() for worker in fleet.leases}
        lapsed_workers = {worker: pool for pool, fleet in self._fleets.items() for worker in fleet.lapsed}
        return lapsed_workers | {worker: pool for worker, pool in workers.items() if worker not in leased_workers}

    def removed(self, workers: Mapping[WorkerId, PoolId]) -> None:
        """Notes that the workers are no members of their pools any more."""
        for worker, pool in workers.items():
            self._fleets[pool].lapsed.discard(worker)
            self._fleets[pool].members.discard(worker)

    def _claim(self, pool: PoolId) -> Command:
        return "SET", self._keys.watched(pool), "1", "NX", "PX", self._claim_ms

    async def _take(self, changes: Mapping[PoolId, Sequence[bytes]]) -> None:
        """Reads the leases that have changed: for each pool worker, score, worker, score, …. Raises: StoreDown."""
        changed_workers = {
            pool: [WorkerId(w.decode()) for w in entries[::2]] for pool, entries in changes.items() if entries
        }
        leases = await self._read_leases([worker for workers in changed_workers.values() for worker in workers])
        for pool, workers in changed_workers.items():
            fleet = self._fleets[pool]
            if fleet.known >= 0:  # else all are read next
                fleet.known = max(fleet.known, *map(float, changes[pool][1::2]))
            fleet.members = fleet.members.difference(workers).union(w for w in workers if w in leases)
            self._set(pool, fleet.leases | {worker: leases.get(worker) for worker in workers})

    def _set(self, pool: PoolId, leases: Mapping[WorkerId, Lease | None]) -> None:
        fleet = self._fleets[pool]
        fleet.set(leases)
        self.grids[pool] = fleet.grid or self.grids[pool]

    async def _read_leases(self, workers: Sequence[WorkerId]) -> dict[WorkerId, Lease | None]:
        """The leases of the workers that live; None: the lease isn't understood. Raises: StoreDown."""
        if not workers:
            return {}
        (raws,) = await self._wire.execute([("MGET", *map(self._keys.worker, workers))])
        return {worker: self._decoded(raw) for worker, raw in zip(workers, raws, strict=True) if raw is not None}

    def _decoded(self, raw: bytes) -> Lease | None:
        """None if the worker's wire version is neither ours nor a neighbour; as drained if we would not hear of it."""
        try:
            lease = decode_lease(raw)
        except msgspec.DecodeError as exc:
            log.error("lease_not_understood", error=str(exc))
            return None
        if abs(lease.wire - WIRE_VERSION) > 1:
            log.error("worker_of_another_version", worker=lease.worker.id, wire=lease.wire)
            return None
        misfit = self._misfit(lease)
        if self._misfits.get(lease.worker.id, "") != misfit:  # else leases are read too often to tell it each time
            self._misfits[lease.worker.id] = misfit
            if misfit:
                log.error(misfit, worker=lease.worker.id, pool=lease.worker.pool)
        return replace(lease, draining=True) if misfit else lease

    def _misfit(self, lease: Lease) -> str:
        """The reason why its answers would be wrong, or not come here; or "".

        The cause is that its settings differ from this process's.
        """
        if lease.worker.model not in ("", self._models.get(lease.worker.pool)):
            return "worker_of_another_model"
        if lease.token_redis < self._token_redis:
            return "worker_lacks_token_redis"
        if lease.broker_apart != self._broker_apart:
            return "worker_has_another_broker"
        return ""
