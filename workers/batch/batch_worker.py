"""The batch worker behind the tasks of `app/tasks/batch.py`, on an event loop in its own thread."""

import asyncio
import time
from collections.abc import Coroutine, Iterable
from contextlib import AsyncExitStack
from itertools import chain, count
from typing import Any, TypeVar

from prometheus_client.metrics_core import Metric

from app.batch.batch_store import BatchStore, PartClaim
from app.batch.fair_share import PARTS
from app.batch.storage import Storage
from app.dispatch.runtime import Deployment, Runtime, running
from app.errors import BatchNotFound, StoreDown
from app.ids import BatchId, submitted_by
from app.running.ending import end_tasks
from app.running.loop_thread import LoopThread
from app.running.loops import keep
from app.store.handling import Handling
from app.telemetry import LOOP_DELAY, LOOP_FAILURES, TENANT_ENGINE, TENANT_REQUESTS, TENANT_TOKENS, USAGE_LOST, logger
from app.tenants.directory import Directory
from app.tenants.ledger import Ledger
from workers.batch.batch_jobs import BatchJobs
from workers.batch.leader import Leader
from workers.batch.line_limits import LineLimits
from workers.batch.part_runner import PartRunner

log = logger(__name__)
T = TypeVar("T")
_LOOK_S = 0.5
_RENEW_EVERY = 10  # looks between two renewals of claims and locks


class BatchWorker:
    """Implements `app.tasks.batch.BatchWorker`, and `workers.worker_port.Registered`."""

    serving: Runtime
    batch_jobs: BatchJobs

    def __init__(self, deployment: Deployment, metrics_at: str = "") -> None:
        """`metrics_at`: its own port, if it has one. Raises: SettingsError."""
        self._known, self._settings, self._metrics_at = deployment, deployment.settings, metrics_at
        self._storage = Storage(deployment.settings.files_url)
        self._thread = LoopThread("batch")
        self._loop = self._thread.loop
        self._parts: set[PartRunner] = set()
        self._tickets: set[PartClaim] = set()
        self._draining = False
        self._turned = time.monotonic()  # when the loop last ran

    # From any thread.

    def start(self) -> None:
        self.call(self._start())

    def call(self, coro: Coroutine[Any, Any, T]) -> T:
        return self._thread.call(coro)

    def drain(self) -> None:
        """Begins no more parts, and finishes only lines that engines have."""
        self._loop.call_soon_threadsafe(self._drain)

    def stop_parts(self) -> None:
        """Gives up all lines of all parts."""
        self._loop.call_soon_threadsafe(self._stop)

    def close(self) -> None:
        """Ends the worker's thread. To be called after all tasks have ended."""
        self.call(self._close())
        self._thread.close()

    def stands_s(self, now: float) -> float:
        return now - self._turned

    def ready(self) -> tuple[bool, str]:
        return not self._draining, "draining" if self._draining else "ready"

    def metrics(self) -> Iterable[Metric]:
        """Metrics of its loops and tenants, as an API replica has them. Its requests are no API replica's."""
        tenants = (metric.collect() for metric in (TENANT_REQUESTS, TENANT_TOKENS, TENANT_ENGINE, USAGE_LOST))
        return chain(LOOP_DELAY.collect(), LOOP_FAILURES.collect(), *tenants)

    def answer(self, batch: str, part: int, ticket: int) -> None:
        self.call(self._answer(PartClaim(BatchId(batch), part, ticket)))

    def revoke(self, tasks: list[str]) -> None:
        """Cancels the batches that these tasks have submitted, without waiting for it."""
        asyncio.run_coroutine_threadsafe(self._revoke(tasks), self._loop)

    # On the loop.

    async def _start(self) -> None:
        self._stack = AsyncExitStack()
        self.serving = await self._stack.enter_async_context(running(self._known))
        keys, wire = self.serving.keys, self.serving.wire
        self._batch_store = BatchStore(wire, keys, self._settings.batch_keep_s)
        directory = Directory(wire, keys)
        ledger = Ledger(wire, keys, self.serving.dispatcher.api, directory)
        self._limits = LineLimits(ledger)
        self._handling = Handling(wire, keys)
        self._leader = Leader(
            self.serving,
            self._batch_store,
            self._limits,
            webhook=self._settings.webhook_url is not None,
            metrics_at=self._metrics_at,
        )
        self.batch_jobs = BatchJobs(
            self.serving,
            self._batch_store,
            self._storage,
            self._limits,
            self._handling,
            loop=self._loop,
            soon=self._leader.soon,
        )
        self._background = [
            asyncio.create_task(self._leader.run()),
            asyncio.create_task(directory.run()),
            asyncio.create_task(ledger.run()),
            asyncio.create_task(self._look()),
            asyncio.create_task(self._turn()),
        ]

    async def _close(self) -> None:
        await end_tasks(self._background)
        await self.batch_jobs.close()
        await self._stack.aclose()

    def _drain(self) -> None:
        self._draining = True
        self._leader.takes = 0
        for part in self._parts:
            part.drain()
        self._loop.call_later(self._settings.drain_timeout_s, self._stop)

    def _stop(self) -> None:
        for part in self._parts:
            part.stop()

    async def _answer(self, ticket: PartClaim) -> None:
        if self._draining or ticket in self._tickets:  # delivered twice
            return
        begin = self._begin if len(self._tickets) < PARTS else self._give_back
        self._tickets.add(ticket)
        try:
            await begin(ticket)
        finally:
            self._tickets.discard(ticket)

    async def _give_back(self, ticket: PartClaim) -> None:
        """Returns a part for which there is no room: it would occupy a thread that other tasks need."""
        me = self.serving.dispatcher.api
        try:
            if await self._batch_store.claim_part(ticket, me):
                await self._batch_store.return_part(ticket, me, done=False)
        except StoreDown as exc:  # the leader sends it again
            log.warning("part_not_given_back", batch=ticket.batch, part=ticket.part, error=exc.message)

    async def _revoke(self, tasks: list[str]) -> None:
        try:
            for task in tasks:
                await self._batch_store.cancel(submitted_by(task))
        except StoreDown as exc:
            log.error("batches_not_revoked", tasks=tasks, error=exc.message)
            return
        self._leader.soon()

    async def _begin(self, ticket: PartClaim) -> None:
        try:
            if not await self._batch_store.claim_part(ticket, self.serving.dispatcher.api):
                return
            batch = await self._batch_store.find(ticket.batch, None)
            await self._limits.known(batch.order)
        except (StoreDown, BatchNotFound) as exc:  # the claim isn't renewed, so the leader sends it again
            log.warning("part_not_begun", batch=ticket.batch, part=ticket.part, error=exc.message)
            return
        part = PartRunner(
            self.serving, self._batch_store, self._storage, ticket, batch, limits=self._limits, handling=self._handling
        )
        self._parts.add(part)
        try:
            await part.run()
        finally:
            self._parts.discard(part)
            self._leader.soon()

    async def _turn(self) -> None:
        def turn() -> None:
            self._turned = time.monotonic()

        await keep("turns_not_noted", turn, _LOOK_S)

    async def _look(self) -> None:
        """Watches the status of batches that this worker works on, and renews its claims."""
        looks = count(1)

        async def look() -> None:
            is_due = next(looks) % _RENEW_EVERY == 0
            for id_ in {part.ticket.batch for part in self._parts} | set(self.batch_jobs.handling):
                await self._look_at(id_)
            if is_due:
                await self._renew()

        await keep("own_batches_not_looked_at", look, _LOOK_S, later=True)

    async def _look_at(self, id_: BatchId) -> None:
        parts = [part for part in self._parts if part.ticket.batch == id_]
        try:
            batch = await self._batch_store.find(id_, None)
        except BatchNotFound as exc:
            log.warning("batch_gone", error=exc.message)
            for part in parts:
                part.stop()
            return
        for part in parts:
            part.look(batch)
        with self.batch_jobs.lock:
            if id_ in self.batch_jobs.handling:
                self.batch_jobs.handling[id_] = batch.status

    async def _renew(self) -> None:
        """Renews this worker's claims and locks; others that Redis has of it expire."""
        me = self.serving.dispatcher.api
        for part in list(self._parts):
            await self._batch_store.claim_part(part.ticket, me)
        for id_, status in list(self.batch_jobs.handling.items()):
            await self._batch_store.lock(id_, status, me)
            if id_ not in self.batch_jobs.handling:  # it was unlocked meanwhile
                await self._batch_store.unlock(id_, me)
