"""Runs the requests with kept answers, and adopts those of dead API replicas."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from app.api.resumable.ended_answers import Ended, EndedAnswers
from app.api.resumable.store import REFUSALS, Found, Lost, Over, ResumableStore, Unkept
from app.dispatch.answering.generation import Generation
from app.dispatch.answering.prompts import Adopted
from app.dispatch.inflight import ATTEMPTS, ChoiceOutput
from app.errors import Cancelled, KeptFull, MediaLost, StorageDown, StoreDown, WorkerLost, XylemError
from app.ids import ApiId, RequestId
from app.messages.events import Delta, Done, Event, Failed, Progress
from app.messages.kept import KeptRequest
from app.messages.wire import encode
from app.running.loops import keep
from app.store import clock
from app.store.handling import Handled
from app.telemetry import logger

log = logger(__name__)

_EVERY_S = 0.5
_RETRY_S = 0.2
_NOT_UNDERSTOOD = "No API replica of this version can continue this answer."
_GIVEN_UP = "API replicas died each time they continued this answer. It is not continued again."

Prepare = Callable[[KeptRequest, Adopted], Awaitable[Generation]]  # from the kept request
# Called with the epoch and the whole log of an answer that has ended well, before its end is written. The next owner
# may call it again.
AtEnd = Callable[[KeptRequest, int, list[bytes]], Awaitable[None]]
# Stores what was painted, before the end is written. Raises: XylemError, with which the answer ends. Called as above.
KeepFile = Callable[[KeptRequest, bytearray], Awaitable[None]]


@dataclass
class Run:
    """An answer that this replica makes."""

    epoch: int
    task: asyncio.Task[None]
    wrote: asyncio.Event  # set when the log has new events
    call: Generation | None = None  # once it is made
    unkept: list[bytes] | None = None  # its log, once there is no room for it in Redis: for those who read it here


class AnswerOwner:
    """The owner of this replica's kept answers, on the API's event loop."""

    def __init__(
        self,
        resumable_store: ResumableStore,
        prepare: Prepare,
        at_end: AtEnd | None = None,
        adopt_s: float = 1.0,
        keep_file: KeepFile | None = None,
        most_deaths: int = 3,
    ) -> None:
        """`adopt_s`: see `Intervals`. `most_deaths`: of replicas that adopt an answer, before it is given up."""
        self._handling, self._most_deaths = resumable_store.handling(), most_deaths
        self._keep_file = keep_file
        self._resumable_store, self._prepare, self._adopt_s = resumable_store, prepare, adopt_s
        self._at_end = at_end
        self._running: dict[RequestId, Run] = {}
        self._ended = EndedAnswers(resumable_store, lambda request: self.wrote(request).set())
        self._missing: dict[ApiId, float] = {}
        self._idle: set[RequestId] = set()  # owned, and not running at the last check

    def start(self, kept_request: KeptRequest, call: Generation) -> None:
        """Runs a new request of this replica."""
        self._run(kept_request.id, 0, self._keep(kept_request, 0, [], call))

    def running(self, request: RequestId) -> Run | None:
        """The answer, if it is made here."""
        return self._running.get(request)

    def wrote(self, request: RequestId) -> asyncio.Event:
        """Is set when this replica has written to the request's log; never, if another one does."""
        run = self._running.get(request)
        return asyncio.Event() if run is None else run.wrote

    def _run(self, request: RequestId, epoch: int, work: Coroutine[None, None, None]) -> None:
        run = self._running[request] = Run(epoch, asyncio.create_task(work), asyncio.Event())

        def over(_: asyncio.Task[None]) -> None:
            if self._running.get(request) is run:
                del self._running[request]

        run.task.add_done_callback(over)

    async def run(self) -> None:
        """Stops answers that were cancelled elsewhere, and adopts those without an owner, until cancelled."""
        try:
            await keep("answers_not_adopted", self._look, _EVERY_S, later=True)
        finally:
            tasks = [run.task for run in self._running.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self) -> None:
        """Raises: StoreDown."""
        try:
            await self._give_up()
            await self._ended.end_again(time.monotonic())
            await self._adopt(time.monotonic())
        except StoreDown:
            self._missing.clear()  # live replicas could not renew their leases
            raise

    async def cancel(self, request: RequestId) -> None:
        """Ends an answer, wherever it is made: here at once, elsewhere within `_EVERY_S`. Raises: StoreDown."""
        was_cancelled = await self._resumable_store.cancel(
            request, [Failed(request, 0, Cancelled.code, "It was cancelled.")]
        )
        self.wrote(request).set()
        run = self._running.get(request)
        if run is not None and (was_cancelled or run.unkept is not None):
            await self._drop({request: True})

    async def _give_up(self) -> None:
        own = {request: run.epoch for request, run in self._running.items()}
        standings = await self._resumable_store.standing(list(own))
        await self._drop(
            {r: now.ended for (r, mine), now in zip(own.items(), standings, strict=True) if now and now.epoch != mine}
        )

    async def _drop(self, requests: dict[RequestId, bool]) -> None:
        """Stops these here, which have ended (true), or which another replica continues."""
        for request, has_ended in requests.items():
            if run := self._running.get(request):
                if has_ended and run.call is not None:
                    run.call.outlives = False
                run.task.cancel()
        await self._resumable_store.disown(list(requests))

    async def _adopt(self, now: float) -> None:
        # This replica's own as well: Redis may have written one without confirming it, and no other replica adopts it.
        idle = await self._resumable_store.owned_by(self._resumable_store.api) - self._running.keys()
        for request in idle & self._idle:
            await self._take(request, self._resumable_store.api)
        self._idle = idle
        dead = await self._resumable_store.dead_owners()
        self._missing = {api: self._missing.get(api, now) for api in dead}
        for api, since in self._missing.items():
            if now - since >= self._adopt_s:
                for request in await self._resumable_store.owned_by(api):
                    await self._take(request, api)
                await self._resumable_store.forget_owner(api)

    async def _take(self, request: RequestId, owner: ApiId) -> None:
        try:
            record = await self._resumable_store.adopt(request, owner)
        except msgspec.MsgspecError as exc:  # of another version, perhaps; the other answers go on
            log.error("answer_not_understood", request=request, error=str(exc))
            await self._resumable_store.cancel(request, [Failed(request, 0, XylemError.code, _NOT_UNDERSTOOD)])
            await self._resumable_store.disown([request])
            return
        except MediaLost as exc:
            log.error("answer_not_whole", request=request, error=exc.message)
            await self._resumable_store.cancel(request, [Failed(request, 0, exc.code, exc.message)])
            await self._resumable_store.disown([request])
            return
        except StorageDown as exc:  # it is this replica's by now, and is taken again
            log.warning("adopted_answer_not_read", request=request, error=exc.message)
            return
        if record is not None and request not in self._running:
            log.warning("request_adopted", request=request, **record.kept.names, of=owner)
            self._run(request, record.epoch, self._resume(record))

    async def _resume(self, existing: Found) -> None:
        """Adopts an answer, unless too many replicas died of that."""
        kept_request = existing.kept
        try:
            async with self._handling.of(f"answer:{kept_request.id}") as attempt:
                if attempt.deaths > self._most_deaths:
                    log.error("answer_given_up", request=kept_request.id, **kept_request.names, deaths=attempt.deaths)
                    await self._resumable_store.cancel(
                        kept_request.id, [Failed(kept_request.id, 0, WorkerLost.code, _GIVEN_UP)]
                    )
                    await self._resumable_store.disown([kept_request.id])
                    self.wrote(kept_request.id).set()
                else:
                    await self._go_on(existing, attempt)
                attempt.done = True
        except StoreDown as exc:  # it will be found idle, and taken again
            log.warning("adopted_answer_not_read", request=kept_request.id, **kept_request.names, error=exc.message)

    async def _go_on(self, existing: Found, handling: Handled) -> None:
        """Raises: StoreDown."""
        kept_request = existing.kept
        batches = await self._resumable_store.written(kept_request.id)
        out: dict[int, ChoiceOutput] = {}
        for event in (event for batch in batches for event in batch):
            if isinstance(event, Delta):
                out.setdefault(event.index, ChoiceOutput([])).add(event)
        adoption = Adopted(kept_request.id, kept_request.created, existing.epoch * ATTEMPTS, out)
        await self._keep(kept_request, existing.epoch, [encode(batch) for batch in batches], adoption, handling)

    async def _keep(
        self,
        kept_request: KeptRequest,
        epoch: int,
        batches: list[bytes],
        generation: Generation | Adopted,
        handling: Handled | None = None,
    ) -> None:
        """Writes the answer's log, until the answer ends or another replica owns it. `handling`: of an adopted one."""
        try:
            last = await self._follow(kept_request, epoch, batches, generation, handling)
        except Lost:
            return
        except XylemError as exc:
            last = Failed(kept_request.id, 0, exc.code, exc.message, exc.param)
        except Exception as exc:
            log.error("kept_answer_broke", request=kept_request.id, **kept_request.names, exc_info=exc)
            last = Failed(kept_request.id, 0, XylemError.code, XylemError().message)
        was_refused = not batches and isinstance(last, Failed) and last.code in REFUSALS
        batches.append(encode([last]))
        try:
            await self._note(
                kept_request, epoch, batches, ended=True, refused=was_refused, whole=isinstance(last, Done)
            )
        except (Lost, KeptFull):
            return
        if not was_refused and self._running[kept_request.id].unkept is None:
            self._ended.add(Ended(kept_request, epoch, batches, isinstance(last, Done), time.monotonic()))

    async def _follow(
        self,
        kept_request: KeptRequest,
        epoch: int,
        batches: list[bytes],
        generation: Generation | Adopted,
        handling: Handled | None,
    ) -> Event:
        """Makes the answer, and writes its events; returns its end. Raises: Lost; the error that ended it."""
        call = generation if isinstance(generation, Generation) else await self._prepare(kept_request, generation)
        call.outlives = True
        self._running[kept_request.id].call = call
        async with call:
            if handling is not None:
                await handling.proved()
            while events := await _next_events(kept_request.id, call):
                batches.append(encode(events))
                await self._note(kept_request, epoch, batches, ended=False)
            for file in call.pictures.values():
                assert self._keep_file is not None
                await self._keep_file(kept_request, file)
            last = Done(
                kept_request.id,
                0,
                call.cached_tokens,
                prompt_tokens=call.prompt_tokens,
                ended=round(clock.now(), 3),
                unshown=call.unshown,
            )
        if self._at_end is not None:
            await self._at_end(kept_request, epoch, [*batches, encode([last])])
        return last

    async def _note(
        self, kept_request: KeptRequest, epoch: int, batches: list[bytes], *, ended: bool, **how: bool
    ) -> None:
        """Raises: Lost; KeptFull if nobody can read the answer any more."""
        run = self._running[kept_request.id]
        while run.unkept is None:
            try:
                await self._resumable_store.note(kept_request, epoch, batches, ended=ended, **how)
                break
            except Over:  # no other replica continues it
                if run.call is not None:
                    run.call.outlives = False
                raise
            except Unkept:
                log.warning("answer_not_kept", request=kept_request.id, **kept_request.names)
                if kept_request.background:
                    raise KeptFull from None
                run.unkept = batches
            except StoreDown as exc:  # later events wait
                log.warning("kept_answer_not_written", request=kept_request.id, **kept_request.names, error=exc.message)
                await asyncio.sleep(_RETRY_S)
        run.wrote.set()


async def _next_events(request: RequestId, call: Generation) -> list[Event]:
    """Events that the log gets next; empty at the end. Raises: the error that ended it."""
    if call.plan.paintings:
        steps = await call.progress()
        return [Progress(request, 0, step.step, step.of) for _number, step in steps[-1:]]
    deltas = await call.deltas()
    for _choice, delta in deltas:
        call.count(delta)
    return [as_kept(request, choice, delta) for choice, delta in deltas]  # its index counts all prompts' choices


def as_kept(request: RequestId, choice: int, d: Delta) -> Delta:
    return replace(d, request=request, attempt=0, index=choice)
