"""The leader, one batch worker at a time: decides what each batch needs next, and which parts are sent."""

import asyncio

from celery import group

from app.batch import fair_share
from app.batch.batch_store import BatchStore, Fields, PartClaim
from app.batch.next_step import Due, due
from app.batch.records import Batch
from app.batch.turns import to_read
from app.dispatch.runtime import Runtime
from app.ids import BatchId, KeyId
from app.keys import PRIORITY_STEPS
from app.running.loops import keep, sooner
from app.store import clock
from app.tasks import batch as tasks
from workers.batch.line_limits import LineLimits

_LAST = PRIORITY_STEPS[-1]  # for parts: tasks that begin and finish batches are taken first
_EVERY_S = 0.5
_SWEEP_S = 60.0
_AGAIN_S = 5.0  # then a message without effect is sent again: it may be lost


class Leader:
    def __init__(
        self,
        serving: Runtime,
        batch_store: BatchStore,
        limits: LineLimits,
        *,
        webhook: bool,
        metrics_at: str = "",
    ) -> None:
        self._serving, self._batch_store, self._limits, self._webhook = serving, batch_store, limits, webhook
        self._metrics_at = metrics_at
        self._worker = serving.dispatcher.api
        self.takes = fair_share.PARTS  # how many parts this worker takes at most
        self._soon = asyncio.Event()
        self._sent: dict[tuple[Due, BatchId], float] = {}
        self._last_sent: dict[BatchId, float] = {}
        self._swept = 0.0  # when dead batch workers were last forgotten
        # Of `to_read`.
        self._owners: dict[BatchId, KeyId] = {}
        self._busy: set[BatchId] = set()
        self._looks = 0

    async def run(self) -> None:
        """Looks at all batches again and again, until cancelled."""
        await keep("batches_not_looked_at", self._turn, sooner(self._soon, _EVERY_S), later=True)

    async def _turn(self) -> None:
        """Raises: StoreDown, OperationalError."""
        steady_s = self._serving.settings.intervals.batches_steady_s
        leads = await self._batch_store.lead(self._worker, self.takes, self._metrics_at)
        if leads and self._serving.wire.steady_s() > steady_s:
            await self.look(clock.now())

    def soon(self) -> None:
        """A part or a step has ended: looks now for the next ones."""
        self._soon.set()

    async def look(self, now: float) -> None:
        """Takes each batch's next step, and sends parts. Raises: StoreDown, OperationalError."""
        ids = await self._batch_store.live_ids()
        present = set(ids)
        self._looks += 1
        read = to_read(ids, self._owners, self._busy, self._looks)
        batches = {batch.order.id: batch for batch in await self._batch_store.live(read)}
        self._owners = {id_: owner for id_, owner in self._owners.items() if id_ in present}
        self._owners |= {id_: batch.order.key for id_, batch in batches.items()}
        loads = await self._batch_store.loads(list(batches))
        limits = await self._limits.of([batch.order for batch in batches.values()])
        running: list[fair_share.Running] = []
        self._busy = {id_ for id_, load in zip(batches, loads, strict=True) if load.taken}
        self._sent = {key: at for key, at in self._sent.items() if key[1] in self._owners}
        self._last_sent = {id_: at for id_, at in self._last_sent.items() if id_ in self._owners}
        for (id_, batch), load in zip(batches.items(), loads, strict=True):
            next_ = due(batch, load, now, webhook=self._webhook)
            if next_ == "send":
                todo = 0 if batch.paused or batch.status != "in_progress" else load.todo
                weight, last_sent = fair_share.weight(batch, now), self._last_sent.get(id_, 0.0)
                most = fair_share.lines_a_minute(batch, limits[id_])
                running.append(
                    fair_share.Running(
                        id_,
                        batch.order.key,
                        batch.model,
                        todo,
                        load.taken,
                        weight=weight,
                        last_sent=last_sent,
                        answered=load.answered,
                        most=most,
                    )
                )
            elif next_ is not None:
                await self._do(next_, batch, now)
        if now - self._swept >= _SWEEP_S:
            await self._batch_store.capacity()  # forgets dead batch workers, also where there is no batch
            self._swept = now
        if running:
            shares = fair_share.share_parts(running, await self._room(running), await self._batch_store.capacity())
            tickets = await self._batch_store.hand_out({r.batch: 0 for r in running} | shares)
            self._busy |= {ticket.batch for ticket in tickets}
            await self._send(tickets, now)

    async def _do(self, what: Due, batch: Batch, now: float) -> None:
        id_ = batch.order.id
        if what == "leave":
            await self._batch_store.leave(id_)
        elif what in ("expire", "complete"):
            ending = "expired" if what == "expire" else "completed"
            fields: Fields = {"status": "finalizing", "finalizing_at": int(now), "ending": ending}
            if what == "expire":
                await self._batch_store.set_status(id_, (batch.status,), fields)
            else:
                await self._batch_store.complete(id_, fields)
        elif now - self._sent.get((what, id_), 0.0) > _AGAIN_S:
            self._sent[what, id_] = now
            if what == "give":
                await asyncio.to_thread(tasks.give, batch.order.waits)
                return
            task = {"begin": tasks.begin, "finish": tasks.finish, "tell": tasks.notify}[what]
            await asyncio.to_thread(task.delay, id_)

    async def _room(self, running: list[fair_share.Running]) -> dict[str, int]:
        """The number of further parts of each model that may be sent."""
        room = {}
        for model in {r.model for r in running}:
            served_model = self._serving.models.get(model)
            leases = await self._serving.fleet.live(served_model.pools) if served_model is not None else []
            seats = sum(lease.worker.max_running * lease.worker.ranks for lease in leases if not lease.draining)
            room[model] = fair_share.room(seats, [r for r in running if r.model == model])
        return room

    async def _send(self, tickets: list[PartClaim], now: float) -> None:
        if tickets:
            parts = group(tasks.answer.s(t.batch, t.part, t.number).set(priority=_LAST) for t in tickets)
            self._last_sent |= {t.batch: now for t in tickets}
            await asyncio.to_thread(parts.apply_async)
