"""Compares this worker's reservations with its queue and its running requests. On the engine's loop."""

import time
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, cast

from redis.exceptions import RedisError

from app.ids import ApiId, PoolId, QueueName, RunId, WorkerId, run_id
from app.keys import PRIORITY_STEPS, Keys
from app.messages.celery_message import read_task_message
from app.runner.runner import Runner
from app.running.loops import keep
from app.store.scripts import RECONCILE
from app.telemetry import logger

log = logger(__name__)

_EVERY_S = 1.0
_LOST_S = 2.0  # a reserved run that is neither queued nor running for so long is lost
_DEAF_S = 45.0  # an idle worker that takes nothing from its queue for so long has lost its broker connection


def recount(
    keys: Keys, worker: WorkerId, pool: PoolId, ranks: int, runs: Sequence[RunId], dead: Sequence[ApiId]
) -> tuple[Any, ...]:
    """The arguments of EVAL for `reconcile.lua`. `runs`: those that are reserved."""
    account = keys.reservations(worker), keys.loads(pool), keys.prefilling(worker), keys.load(worker)
    names = [*account, keys.starting(pool), *map(keys.request, runs)]
    return RECONCILE, len(names), *names, worker, ranks, *runs, *dead


class DeafError(Exception):
    """The worker has to end: Celery has lost its connection, and does not know it."""


class ReservationAudit:
    """Every second: drops requests of dead API replicas, and gives back requests whose message was lost.

    A message is lost when Celery takes it on a connection that breaks, when Redis comes back without its last second,
    or, where the broker is another server, when it could not be sent. One look isn't enough: a message being
    delivered looks lost.
    """

    def __init__(self, runner: Runner, queue: QueueName) -> None:
        self._runner, self._queue = runner, queue
        self._missing: dict[ApiId, float] = {}  # API replicas without a lease, and since when
        self._unknown: dict[RunId, float] = {}  # reserved and not found here, and since when
        self._heard = time.monotonic()

    async def run(self) -> None:
        """Audits the reservations again and again, until cancelled. Raises: DeafError."""
        await keep("account_not_read", self._turn, _EVERY_S, later=True, ends=DeafError)

    async def _turn(self) -> None:
        try:
            await self.look(time.monotonic())
        except (RedisError, OSError):
            self._missing.clear()
            self._unknown.clear()
            self._heard = time.monotonic()
            raise

    async def look(self, now: float) -> None:
        """One look; `now`: monotonic. Raises: RedisError, OSError, DeafError."""
        runner, keys = self._runner, self._runner.keys
        reservations = await cast(Awaitable[dict[bytes, bytes]], runner.redis.hgetall(keys.reservations(runner.worker)))
        dead = await self._dead(reservations.values(), now)
        runs = [RunId(run.decode()) for run in reservations]
        reply = await runner.redis.eval(*recount(keys, runner.worker, runner.pool, len(runner.gates), runs, dead=dead))
        reserved_runs, dropped_runs = ([x.decode() for x in part] for part in cast(list[list[bytes]], reply))
        for run in dropped_runs:
            runner.drop(RunId(run))
        if dead:
            log.warning("api_lost", apis=dead, requests=len(dropped_runs))
        unknown_runs = {RunId(run) for run in reserved_runs} - runner.runs
        queued_runs = await self._queued() if unknown_runs or not runner.runs else set()
        if runner.runs or not queued_runs:
            self._heard = now
        elif now - self._heard > _DEAF_S:
            raise DeafError("requests wait, and Celery does not take them")
        unknown_runs -= queued_runs
        self._unknown = {run: self._unknown.get(run, now) for run in unknown_runs}
        for run, since in self._unknown.items():
            if now - since >= _LOST_S and await runner.return_if_lost(run):
                log.warning("request_was_lost_on_its_way", run=run)

    async def _dead(self, entries: Iterable[bytes], now: float) -> list[ApiId]:
        """The API replicas that await reserved runs, and have had no lease for long."""
        fields = [entry.decode().split(",") for entry in entries]
        apis = sorted({ApiId(entry[4]) for entry in fields if len(entry) > 4})  # none in those of an older version
        pipe = self._runner.redis.pipeline(transaction=False)
        for api in apis:
            pipe.exists(self._runner.keys.api(api))
        lives = await pipe.execute() if apis else []
        missing = [api for api, there in zip(apis, lives, strict=True) if not there]
        self._missing = {api: self._missing.get(api, now) for api in missing}
        return [api for api in missing if now - self._missing[api] >= self._runner.settings.intervals.drop_s]

    async def _queued(self) -> set[RunId]:
        pipe = self._runner.broker.pipeline(transaction=False)
        for step in PRIORITY_STEPS:
            pipe.lrange(self._runner.keys.queue(self._queue, step), 0, -1)
        messages = [read_task_message(raw) for raws in await pipe.execute() for raw in raws]
        return {run_id(request, attempt) for _handoff, request, attempt in filter(None, messages)}
