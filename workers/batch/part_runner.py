"""Runs one part of a batch: dispatches all its lines at once; engines take each when they have room.

Long, because what asks a line, stops it and writes its result share the same state of each line.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

import orjson
from msgspec import structs
from msgspec.structs import replace

from app import json_bytes
from app.batch import paths as batch_paths
from app.batch.batch_store import BatchStore, PartClaim
from app.batch.fair_share import is_urgent
from app.batch.handling_names import of_part
from app.batch.records import Batch, BatchLine, Problem, Result, decode_part, decode_results
from app.batch.storage import Storage
from app.bounded.turns import CLIENT
from app.dispatch.answering.content_hook import pause_s
from app.dispatch.answering.generation import Generation
from app.dispatch.asking import Asking
from app.dispatch.media.media_reader import Asker
from app.dispatch.runtime import Runtime
from app.endpoint_registry import ENDPOINTS
from app.errors import (
    BudgetUsed,
    Cancelled,
    DeadlineOver,
    EngineFailed,
    FileGone,
    HookDown,
    NoWorker,
    Saturated,
    StorageDown,
    StoreDown,
    WorkerLost,
    XylemError,
)
from app.ids import line_id
from app.messages.wire import encode
from app.store import clock
from app.store.handling import Handled, Handling
from app.telemetry import logger
from app.tenants.limit_table import TenantLimits
from app.tracing.request_trace import RequestTrace
from app.usage.record import LineTry
from workers.batch.line_limits import LineLimits
from workers.batch.suspect_lines import CUT, GIVEN_UP, MOST_LETHAL, SuspectLines
from workers.batch.until_done import until_done

log = logger(__name__)

_RETRY_S = 1.0
_PASSING = (Saturated, StoreDown, HookDown)  # temporary: a line has time to try again
_LASTING = (BudgetUsed, NoWorker)  # nobody knows for how long: the part is given back, as others need its place
_LASTING_S = 5.0  # before that: if the leader doesn't know of it, it sends the part again at once
_MOST_FAILURES = 3  # of engines, with one line
_LONG = 64 * 2**10  # bytes; longer answers are stored in the storage instead of Redis
_PRIORITY = 100  # in engines' schedulers: behind all online requests
_URGENT = 10  # of an urgent batch: behind most online requests


class PartRunner:
    """The runner of one part, on the worker's event loop."""

    def __init__(
        self,
        serving: Runtime,
        batch_store: BatchStore,
        storage: Storage,
        ticket: PartClaim,
        batch: Batch,
        limits: LineLimits,
        handling: Handling,
    ) -> None:
        self._limits, self._handling = limits, handling
        self.ticket, self.batch = ticket, batch
        self._serving, self._batch_store, self._storage = serving, batch_store, storage
        self._worker = serving.dispatcher.api
        self._endpoint = ENDPOINTS[batch.order.endpoint]
        self._results: dict[int, Result] = {}
        self._asking: dict[asyncio.Task[None], BatchLine] = {}
        self._generations: dict[int, Generation] = {}  # by line
        self._within: dict[int, TenantLimits] = {}  # what each line might ask for when it was understood
        self._again: set[int] = set()  # lines that are dispatched again when their try has ended
        self._writing: set[int] = (
            set()
        )  # lines whose answer is there, and charged: only their result is not written yet
        self._entering: asyncio.Future[Handled] | None = None
        self._suspects = SuspectLines(handling, ticket.batch)
        self._urgent = is_urgent(batch, clock.now())
        self._stopping = False
        self._broke = False  # by an internal error
        self._lasts = False  # whether what a line waits for may last

    async def run(self) -> None:
        """Runs until the results of all lines are in the storage, or the part is stopped."""
        whole = False
        try:
            whole = await self._counted()
            if self._lasts and not self._stopping:
                await asyncio.sleep(_LASTING_S)
        except (FileGone, StorageDown, StoreDown) as exc:  # an unmounted shared folder looks empty
            log.error("part_not_answered", batch=self.ticket.batch, part=self.ticket.part, reason=exc.message)
            await asyncio.sleep(_RETRY_S)
        except Exception as exc:
            self._broke = True
            log.error("part_broke", batch=self.ticket.batch, part=self.ticket.part, exc_info=exc)
            await asyncio.sleep(_RETRY_S)
        finally:
            self.stop()
            back = self._batch_store.return_part
            await until_done(self.ticket.batch, back, self.ticket, self._worker, done=whole, broke=self._broke)

    async def _counted(self) -> bool:
        """Does as `_all`, and counts the part. Raises: StoreDown, too.

        While other suspects begin, a suspect part waits, until it is stopped.
        """
        async with AsyncExitStack() as stack:
            context = self._handling.of(of_part(self.ticket.batch, self.ticket.part))
            self._entering = asyncio.ensure_future(stack.enter_async_context(context))
            try:
                handling = await self._entering
            except asyncio.CancelledError:
                if not self._stopping:
                    raise
                return False
            handling.done = await self._all(handling)
            return handling.done

    async def _all(self, handling: Handled) -> bool:
        """Answers the lines; whether the results of all are in the storage. Raises: FileGone, StorageDown."""
        batch, part = self.ticket.batch, self.ticket.part
        raw = await asyncio.to_thread(self._storage.get, batch_paths.part(batch, part))
        if raw is None:
            raise FileGone(f"There is no part {part} of {batch} in the storage.")
        lines = decode_part(raw).lines
        raw_results = await asyncio.to_thread(self._storage.get, batch_paths.answers(batch, part))
        if raw_results is not None and {r.number for r in decode_results(raw_results)} == {
            line.number for line in lines
        }:
            return True  # done before, which Redis has lost
        self._results = {r.number: r for r in await until_done(batch, self._batch_store.done, batch, part)}
        todo = [line for line in lines if line.number not in self._results]
        self._suspects.begin(handling, [line.number for line in todo])
        if self._stopping:
            pass
        elif handling.deaths and self.batch.lethal >= MOST_LETHAL:
            await asyncio.gather(*(self._give_up(line) for line in todo))
        elif handling.deaths >= CUT:
            await self._one_by_one(todo)
        else:
            self._ask(todo)
        while self._asking:
            await asyncio.wait(self._asking, return_when=asyncio.FIRST_COMPLETED)
        if len(self._results) < len(lines):
            return False
        results = sorted(self._results.values(), key=lambda r: r.number)
        await asyncio.to_thread(self._storage.put, batch_paths.answers(batch, part), encode(results))
        return True

    async def _one_by_one(self, lines: list[BatchLine]) -> None:
        """Begins a line when the one before has begun well, or is no danger."""
        log.warning("part_cut", batch=self.ticket.batch, part=self.ticket.part)
        for line in lines:
            if self._stopping:
                return
            self._start(line, self._answer_alone(line))
            await self._suspects.begun(line.number)

    async def _answer_alone(self, line: BatchLine) -> None:
        """Answers a line, unless too many batch workers have died with it alone."""
        try:
            async with self._suspects.alone(line.number) as handling:
                if handling.deaths > self._serving.settings.max_migrations:
                    await self._give_up(line)
                else:
                    await self._answer(line)
                handling.done = line.number in self._results
        except StoreDown as exc:
            log.warning("batch_waits", batch=self.ticket.batch, error=exc.message)
            self.stop()

    async def _give_up(self, line: BatchLine) -> None:
        log.error("line_given_up", batch=self.ticket.batch, part=self.ticket.part, line=line.number)
        await until_done(self.ticket.batch, self._batch_store.count_lethal, self.ticket.batch)
        await until_done(self.ticket.batch, self._limits.give_back, self.batch.order, [line.number])
        await self._write(line, self._failed(line, WorkerLost(GIVEN_UP)))

    def look(self, batch: Batch) -> None:
        """Takes the batch's new state: stops if it isn't in progress; if it is urgent, its lines give way no more.

        What waiting lines may ask for is that of today, too.
        """
        self.batch = batch
        if batch.status != "in_progress" or batch.paused:
            self.stop()
            return
        self._urgent = self._urgent or is_urgent(batch, clock.now())
        if self._stopping:
            return
        if self._urgent:
            self._hurry()
        self._understand_again()

    def stop(self) -> None:
        """Gives up the lines that have no answer yet."""
        self._begin_no_more()
        recorded_numbers = {number for number, generation in self._generations.items() if generation.is_recorded}
        answered_numbers = self._writing | recorded_numbers  # and charged
        self._cancel([line for line in self._asking.values() if line.number not in answered_numbers])

    def drain(self) -> None:
        """Gives up the lines that wait for an engine; those on one are finished."""
        self._begin_no_more()
        self._cancel(self._waiting())

    def _begin_no_more(self) -> None:
        self._stopping = True
        if self._entering is not None:
            self._entering.cancel()

    def _hurry(self) -> None:
        """Dispatches waiting aside lines again, as online ones, when they have given back what they were charged.

        Those on an engine follow if they come back.
        """
        waiting = {line.number: line for line in self._waiting()}
        aside = {number for number, generation in self._generations.items() if generation.plan.aside}
        self._dispatch_again([line for number, line in waiting.items() if number in aside])

    def _understand_again(self) -> None:
        """Dispatches waiting lines again whose client has other limits now: it may have lost their model."""
        within = self._limits.within(self.batch.order)
        understood_lines = [line for line in self._waiting() if line.number in self._generations]
        self._dispatch_again([line for line in understood_lines if self._within.get(line.number, within) != within])

    def _dispatch_again(self, lines: list[BatchLine]) -> None:
        lines = [line for line in lines if line.number not in self._again]
        self._again |= {line.number for line in lines}
        self._cancel(lines)

    def _waiting(self) -> list[BatchLine]:
        """Lines that no engine has or has answered."""
        taken_numbers = {
            number for number, generation in self._generations.items() if not generation.waits
        } | self._writing
        return [line for line in self._asking.values() if line.number not in taken_numbers]

    def _ask(self, lines: list[BatchLine]) -> None:
        for line in lines:
            is_alone = self._suspects.is_alone(line.number)
            self._start(line, self._answer_alone(line) if is_alone else self._answer(line))

    def _start(self, line: BatchLine, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._asking[task] = line
        task.add_done_callback(self._answered)

    def _answered(self, task: "asyncio.Task[None]") -> None:
        line = self._asking.pop(task)
        again = line.number in self._again
        self._again.discard(line.number)
        if task.cancelled():
            if again and not self._stopping:
                self._ask([line])
        elif (exc := task.exception()) is not None:
            self._broke = True
            log.error("line_broke", batch=self.ticket.batch, part=self.ticket.part, exc_info=exc)

    def _cancel(self, lines: list[BatchLine]) -> None:
        numbers = {line.number for line in lines}
        for task, line in list(self._asking.items()):
            if line.number in numbers:
                task.cancel()

    async def _answer(self, line: BatchLine) -> None:
        """Answers a line, and writes its result; none when the batch's time is over, or what it waits for may last."""
        failures = unseen = 0
        while True:
            try:
                result = await self._request(line)
                break
            except DeadlineOver:
                return
            except _LASTING:
                self._lasts = True
                return
            except (*_PASSING, Cancelled) as exc:
                unseen = unseen + 1 if isinstance(exc, HookDown) else 0
            except EngineFailed as exc:
                failures += 1
                if failures >= _MOST_FAILURES:
                    result = self._failed(line, exc)
                    break
            except XylemError as exc:
                result = self._failed(line, exc)
                break
            except Exception as exc:
                log.error("line_broke", batch=self.ticket.batch, exc_info=exc)
                result = self._failed(line, XylemError())
                break
            await asyncio.sleep(max(_RETRY_S, pause_s(unseen)))
        await self._write(line, result)

    async def _write(self, line: BatchLine, result: Result) -> None:
        await self._suspects.read(line.number)
        self._writing.add(line.number)
        if len(result.body) > _LONG:
            path = batch_paths.body(self.ticket.batch, result.request)
            await until_done(self.ticket.batch, asyncio.to_thread, self._storage.put, path, result.body)
            result = structs.replace(result, body=b"", apart=True)
        if await until_done(self.ticket.batch, self._batch_store.add_result, self.ticket, self._worker, result):
            self._results[line.number] = result
        else:  # another worker has the part by now
            self.stop()

    async def _request(self, line: BatchLine) -> Result:
        """Raises: XylemError."""
        self._writing.discard(line.number)
        left_s = self.batch.order.expires - clock.now()
        if left_s <= 0:
            raise DeadlineOver
        trace = RequestTrace.begin(self._serving.tracer, b"", self.batch.order.endpoint)
        if trace is not None:
            trace.ends_with_answer = True
            if trace.sampled:
                trace.attributes["xylem.batch"] = self.ticket.batch
        CLIENT.set(self._limits.client(self.batch.order).turn)
        within = self._within[line.number] = self._limits.within(self.batch.order)
        asking = Asking(self._serving, within, Asker(self.batch.order.key))
        body, plan = await self._endpoint.understand(asking, line.body)
        await self._suspects.read(line.number)
        plan = replace(
            plan,
            timeout_s=left_s,
            aside=not self._urgent,
            whole=True,
            priority=(_URGENT if self._urgent else _PRIORITY) + max(0, plan.priority),
        )
        generation = self._generations[line.number] = Generation(
            plan,
            dispatcher=self._serving.dispatcher,
            charge=self._limits.charge(self.batch.order, plan, line.number),
            client=self._limits.client(self.batch.order),
            trace=trace,
        )
        ticket = self.ticket
        generation.batch_line = LineTry(ticket.batch, line_id(ticket.batch, line.number), ticket.number)
        try:
            async with generation:
                answer = await self._endpoint.writer(generation, body).whole()
                self._writing.add(line.number)
        finally:
            if self._generations.get(line.number) is generation:
                del self._generations[line.number]
        return Result(
            line.number,
            line.custom_id,
            200,
            generation.id,
            json_bytes.dumps(answer),
            prompt=generation.prompt_tokens,
            cached=generation.cached_tokens,
            completion=generation.completion_tokens + generation.unshown,
        )

    def _failed(self, line: BatchLine, exc: XylemError) -> Result:
        problem = Problem(exc.code, exc.message, line.number, exc.param)
        return Result(
            line.number, line.custom_id, exc.status, "", orjson.dumps(self._endpoint.error_body(exc)), problem=problem
        )
