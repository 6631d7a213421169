"""Carries out the planner's decisions for `xylem up --planner`: starts workers of this machine, and lets some end."""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import redis

from app.cli.supervisor import Component, Supervisor
from app.ids import PoolId, WorkerId
from app.messages.lease import decode_lease
from app.planner.desired import Desired, decode_desired
from app.settings import Settings
from app.store import sync_client

_EVERY_S = 1.0
_TIMEOUT_S = 1.0

Read = Callable[[], Mapping[PoolId, tuple[Desired, Mapping[WorkerId, int]]]]


def to_end(
    surplus: int, drain: Iterable[WorkerId], pids: Mapping[WorkerId, int], running: Sequence[Component]
) -> list[Component]:
    """The running workers that are to end: those that take no requests yet, the newest first, and those in `drain`.

    No others: what a plan doesn't name may hold the most valuable cache. `pids`: of the workers with a lease.
    """
    leased_pids = set(pids.values())
    starting = [one for one in running if one.process is not None and one.process.pid not in leased_pids]
    starting.sort(key=lambda one: -one.began)
    by_pid = {one.process.pid: one for one in running if one.process is not None}
    draining = [by_pid[pids[worker]] for worker in drain if pids.get(worker) in by_pid]
    return [*starting, *draining][: max(0, surplus)]


class Following:
    def __init__(
        self, supervisor: Supervisor, workers: Mapping[PoolId, Sequence[Component]], read: Read, grace_s: float
    ) -> None:
        """`workers`: of the pools that are planned, as many as there may be. `grace_s`: for a worker's requests."""
        self._supervisor, self._workers, self._read, self._grace_s = supervisor, workers, read, grace_s
        self._looked = 0.0  # monotonic

    def look(self) -> None:
        """Follows the plan at most once a second: it is called more often."""
        if time.monotonic() - self._looked < _EVERY_S:
            return
        for pool, (plan, pids) in self._read().items():
            if plan.act:
                self._follow(self._workers[pool], plan, pids)
        self._looked = time.monotonic()

    def _follow(self, workers: Sequence[Component], target: Desired, pids: Mapping[WorkerId, int]) -> None:
        running = [one for one in workers if self._supervisor.has(one) and not one.retiring]
        free = [one for one in workers if not self._supervisor.has(one)]
        for component in free[: max(0, target.workers - len(running))]:
            self._supervisor.start(component)
        for component in to_end(len(running) - target.workers, target.drain, pids, running):
            self._supervisor.retire(component, self._grace_s)


def reader(settings: Settings, pools: Sequence[PoolId]) -> Read:
    """Reads the pools that a planner has decided about, each with the process ids of its workers on this machine."""
    keys, host = settings.keys, os.uname().nodename

    def read() -> Mapping[PoolId, tuple[Desired, Mapping[WorkerId, int]]]:
        plans = {}
        try:
            with sync_client(settings.redis_url, _TIMEOUT_S, keys.home) as client:
                for pool in pools:
                    raw = client.get(keys.desired(pool))
                    if raw is None:
                        continue
                    names = [WorkerId(name.decode()) for name in client.hkeys(keys.pool(pool))]
                    leases = client.mget([keys.worker(name) for name in names]) if names else []
                    workers = [decode_lease(lease).worker for lease in leases if lease]
                    pids = {worker.id: worker.pid for worker in workers if worker.host == host}
                    plans[pool] = decode_desired(raw), pids
        except (redis.RedisError, OSError, msgspec.DecodeError):
            return {}  # it looks again in a second
        return plans

    return read
