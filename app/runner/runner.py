"""Runs requests on the engine, on the engine's own event loop in its own thread.

Tasks begin here at once, without a thread of Celery's pool; the engine batches. `RUNNER` is set once, by the worker's
bootstep; the tasks of the process find it there.
"""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextlib import AbstractContextManager
from typing import Any, Generic, NamedTuple, TypeVar, cast

from msgspec.structs import replace
from redis.asyncio import Redis
from redis.exceptions import RedisError

from app.engines.base import Engine, EngineInfo, EngineStats
from app.errors import Cancelled, EngineDead, EngineFailed, HandoffFailed, Returned, Revoked, StoreDown, XylemError
from app.grammars.checker import GrammarChecker
from app.ids import PoolId, RequestId, RunId, WorkerId, request_of, run_id
from app.messages.events import Failed, PrefillDone
from app.messages.handoff import Handoff, KvHandle
from app.messages.job import Job
from app.messages.lease import Speeds
from app.painters.base import Painter
from app.pools.schema import Aside
from app.runner.adapters_in_use import AdaptersInUse
from app.runner.busy_time import BusyPart
from app.runner.content_stops import StopFinder
from app.runner.engine_requests import EngineRequests
from app.runner.job_record import fetch
from app.runner.outcome import Outcome
from app.runner.pictures import WorkerPictures
from app.runner.probed_work import ProbedWork
from app.runner.process_slot import ProcessSlot
from app.runner.throughput import Throughput
from app.runner.token_emitters import TokenEmitters
from app.runner.yield_gate import YieldGate
from app.running.loop_thread import LoopThread
from app.settings import Settings
from app.store import Wire, async_client
from app.telemetry import logger
from app.tokenizing.tokenizer import Tokenizer

log = logger(__name__)
T = TypeVar("T")
Work = Callable[[Job], Coroutine[Any, Any, T | None]]
Afterwards = Callable[[], Awaitable[None]] | None
_RULES = Aside()
_LAST_EVENTS_S = 5.0  # how long a worker that ends waits until its last events are in Redis


class RunArgs(NamedTuple, Generic[T]):
    """The stage of a request that this worker runs.

    `work` ends the request with a terminal event, or leaves it to another worker. If it raises, the event is Failed,
    and the result None. For a request that was cancelled before, `nobody_waits` is called instead. A result that isn't
    None is given to `then`, which no cancel stops, and which raises nothing.
    """

    request: RequestId
    attempt: int
    work: Work[T]
    nobody_waits: Afterwards = None
    then: Callable[[T], Awaitable[None]] | None = None


class Runner:
    """One engine, the requests on it, and the emitters of their tokens."""

    def __init__(
        self,
        engine: Engine | Painter,
        worker: WorkerId,
        pool: PoolId,
        settings: Settings,
        rules: Aside = _RULES,
        model: str = "",
        tokenizer: Callable[[], Tokenizer] | None = None,
    ) -> None:
        """`rules`: for aside requests. `model`: as the pools file names it. `tokenizer`: gives the model's."""
        # A pool has one task: its tasks use the one, and what is common to both is used of `engine`.
        self.engine, self.painter = cast(Engine, engine), cast(Painter, engine)
        self.watchers: dict[RunId, Callable[[int, int], None]] = {}  # called with a painting's step, and of how many
        self.worker, self.pool, self.settings, self._rules = worker, pool, settings, rules
        self._model, self.tokenizer = model, tokenizer
        self.keys = settings.keys
        self.redis: Redis
        self.wire: Wire  # to the same
        self.broker: Redis  # with the worker's queue
        self.broker_wire: Wire  # to the same
        self.index: Wire  # to the Redis that has the prefix index: what it is sent may be much
        self.info: EngineInfo
        self.emitters: TokenEmitters
        self.throughput: Throughput
        self.gates: list[YieldGate] = []  # of each rank
        self.pictures: WorkerPictures
        self.requests: EngineRequests
        self.adapters = AdaptersInUse()
        self.stops = StopFinder(tokenizer)
        self.probed = ProbedWork()
        self._running: dict[RunId, asyncio.Task[Any]] = {}
        self.load_s = 0.0  # how long the engine took to start
        self.loop_delay_s = 0.0  # the longest of late, of this loop
        self.kv_blocks_left_out = 0  # of those that its engine has told of
        self._costs: dict[RunId, BusyPart] = {}  # of those that have been on the engine
        self._outcomes: dict[RunId, Outcome] = {}  # of the running ones
        self._returned: set[RunId] = set()  # of these, the ones to be placed elsewhere
        self._revoked: set[RunId] = set()  # and those that an operator has ended
        self._background: set[asyncio.Task[None]] = set()
        self._dropped: set[RunId] = set()  # of the running ones, those whose API replica is dead
        self._stopping = False
        self.weights = ""  # the version that the engine has
        self.closed = False  # what has not begun goes back: the engine sleeps, is paused, or gets other weights
        self._thread = LoopThread("engine")
        self._loop = self._thread.loop

    # From any thread.

    def load(self) -> EngineInfo:
        """Blocks until the engine can serve. Raises: StoreDown, and the errors of Engine.start."""
        return self.call(self._load())

    def run(self, run: RunArgs[T]) -> T | None:
        """Blocks until this worker's stage of a request is over, and returns the result of its work."""
        running = self._run(run, Outcome(self._model))
        return self.call(running)

    def start(self, run: RunArgs[T], on_end: Callable[[Outcome, BaseException | None], None]) -> None:
        """Does what `run` does, on the engine's loop and without waiting.

        `on_end` is called with an error that `work` left.
        """
        outcome = Outcome(self._model)

        def over(task: asyncio.Task[Any]) -> None:
            on_end(outcome, None if task.cancelled() else task.exception())

        running = self._run(run, outcome)
        self._loop.create_task(running).add_done_callback(over)

    def call(self, coro: Coroutine[Any, Any, T]) -> T:
        """Runs `coro` on the engine's loop and waits for it."""
        return self._thread.call(coro)

    def soon(self, call: Callable[[], None]) -> None:
        """Calls it on the engine's loop, without waiting."""
        self._loop.call_soon_threadsafe(call)

    def give_up_after(self, seconds: float) -> None:
        """Gives requests that still run after `seconds` back to their API replicas."""
        self._loop.call_soon_threadsafe(self._loop.call_later, seconds, self._give_up)

    def close(self) -> None:
        """Ends running requests, then engine, loop and thread."""
        self.call(self._close())
        self._thread.close()

    # On the engine's loop.

    @property
    def stopping(self) -> bool:
        """Whether the worker is giving its requests back: a cancelled one goes back to its API replica."""
        return self._stopping

    async def wait_for_runs(self) -> None:
        """Returns when all runs that have begun are over."""
        while self._running:
            await asyncio.wait(self._running.values())
            await asyncio.sleep(0.01)  # they leave the list a moment later

    async def wait_for_lent_blocks(self, seconds: float) -> None:
        """Returns when other engines have pulled the KV that this one computed for them, or after `seconds`."""
        end = time.monotonic() + seconds
        while self.engine.stats().lent_blocks and time.monotonic() < end:  # noqa: ASYNC110 (engines have no event for it)
            await asyncio.sleep(0.05)

    def cancel(self, run: RunId) -> None:
        """Cancels a run. One that isn't running has ended, or is queued and won't begin without its record."""
        task = self._running.get(run)
        if task is None or not task.cancel():  # what comes after a prefill goes on, and finds no record
            self.emitters.release(run)

    def revoke(self, requests: Collection[RequestId]) -> None:
        """Ends these requests, as an operator wants it: what runs here of them, and what waits to."""
        for run in [run for run in self._running if request_of(run) in requests]:
            self._revoked.add(run)
            self._running[run].cancel()
        self.in_background(self._revoke_waiting(requests))

    def drop(self, run: RunId) -> None:
        """Cancels a run of a dead API replica, without an event."""
        if run in self._running:
            self._dropped.add(run)
        self.cancel(run)

    def give_all_back(self) -> None:
        """Gives all running requests back to their API replicas, which may have placed them elsewhere by now."""
        self._returned |= self.runs
        for task in self._running.values():
            task.cancel()

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` as a task that `close` cancels."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _load(self) -> EngineInfo:
        self.redis = async_client(self.settings.redis_url, self.keys.home)
        try:  # before the engine is loaded, which may take minutes
            await self.redis.ping()
        except (RedisError, OSError) as exc:
            raise StoreDown(f"XYLEM_REDIS_URL: Redis does not answer: {exc}") from exc
        self.broker = async_client(self.settings.broker_url) if self.settings.broker_url else self.redis
        began = time.monotonic()
        info = await self.engine.start()
        self.load_s = time.monotonic() - began
        self.block_size, self.computes = info.block_size, info.computes
        self._clients = [self.redis, *map(async_client, self.settings.token_redis_urls)]
        self._wires = [Wire(client) for client in self._clients]
        index = async_client(self.settings.index_url) if self.settings.index_url else self.redis
        self._clients.append(index)
        self.wire, self.index = self._wires[0], Wire(index)
        self.pictures = WorkerPictures(self.wire, self.keys, self.worker, self._model, self.settings.embedding_bytes)
        self._grammar_compiler = GrammarChecker(info.grammar_compiler) if info.grammar_compiler else None
        self.take(info)
        self.broker_wire = Wire(self.broker) if self.settings.broker_url else self.wire
        self.emitters = TokenEmitters(self._wires, self.keys, self.worker, self.pool, self.settings)
        self._emitting = asyncio.create_task(self.emitters.run())
        self._emitting.add_done_callback(end_process)
        return info

    def take(self, info: EngineInfo) -> None:
        """Takes over what the engine is, before its first request or while it has none."""
        self.info = info
        self.requests = EngineRequests(
            self.worker, self.keys, self.redis, self.pictures, info, speeds=self.speeds, compiler=self._grammar_compiler
        )
        self.throughput = Throughput(info.ranks, info.max_running * info.ranks, self.is_apart)
        self.gates = [YieldGate(info, self._rules, self.engine.stats, self.throughput.read) for _ in range(info.ranks)]

    def speeds(self, stats: EngineStats | None = None) -> Speeds:
        """Speeds of online requests, of the tiers, and of steps. `stats`: the engine's, if they were just asked for."""
        stats = stats or self.engine.stats()
        return replace(
            self.throughput.online.read(time.monotonic()),
            host_bytes_per_s=stats.host_bytes_per_s,
            store_bytes_per_s=stats.store_bytes_per_s,
            step_s=stats.step_s,
            request_step_s=stats.request_step_s,
        )

    def _give_up(self) -> None:
        self._stopping = True
        for task in self._running.values():
            task.cancel()

    async def _close(self) -> None:
        self._give_up()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._running.values(), *self._background, return_exceptions=True)
        await self.emitters.drained(_LAST_EVENTS_S)
        self._emitting.cancel()
        await self.engine.close()
        if self._grammar_compiler is not None:
            await asyncio.to_thread(self._grammar_compiler.close)
        await self.pictures.close()
        for wire in (*self._wires, self.index, self.broker_wire):
            wire.close()
        for client in {*self._clients, self.broker}:
            await client.aclose()

    def progress(self, job: Job, step: int, of: int) -> None:
        """A step of a painting is over."""
        watcher = self.watchers.get(job.run)
        if watcher is not None:
            watcher(step, of)

    def is_apart(self, job: Job) -> bool:
        """Whether it is none of the load that other requests meet: aside, or a prompt for a worker of this pool."""
        return job.aside or (self.info.peers and job.stage_of(self.worker).kind == "prefill")

    def gate(self, job: Job) -> YieldGate:
        return self.gates[job.stage_of(self.worker).rank]

    def prefilled(self, job: Job, tokens: int) -> None:
        """`tokens` of its prompt were computed: measures the engine's speed."""
        stage = job.stage_of(self.worker)
        reused_tokens = len(job.prompt) + job.encoder_tokens - tokens if stage.kind in ("prefill", "decode") else 0
        self.throughput.first_token(job, stage.rank, tokens, reused_tokens)
        self.gate(job).computed(job.run, tokens)

    def has(self, job: Job) -> AbstractContextManager[None]:
        """Counts the request as one of the engine's meanwhile."""
        cost = self._costs.get(job.run)
        if cost is None:
            cost = self._costs[job.run] = BusyPart(self.throughput.working)
        return self.throughput.has(job, cost)

    def cost_s(self, job: Job) -> float:
        """Seconds that the request has cost here so far."""
        cost = self._costs.get(job.run)
        return 0.0 if cost is None else cost.seconds

    async def _run(self, args: RunArgs[T], outcome: Outcome) -> T | None:
        request, attempt, work, nobody_waits, then = args
        run = run_id(request, attempt)
        if run in self._running:  # a message is sent again after a broken connection
            log.warning("message_came_twice", run=run)
            return None
        # In its own task, so that `cancel` cancels the work and not this coroutine.
        task: asyncio.Task[T | None] = asyncio.ensure_future(self._serve(run, work, nobody_waits))
        self._running[run], self._outcomes[run] = task, outcome
        await asyncio.wait([task])
        try:
            if task.cancelled():  # before the task began
                await self._not_begun(run, nobody_waits)
            elif then is not None and (result := task.result()) is not None:
                await then(result)
        finally:
            del self._running[run]
            del self._outcomes[run]
            self._costs.pop(run, None)
        for marks in (self._returned, self._dropped, self._revoked):
            marks.discard(run)
        return None if task.cancelled() else task.result()

    async def _not_begun(self, run: RunId, nobody_waits: Afterwards) -> None:
        """Ends a run that was cancelled or refused before the engine had it.

        With a record it is awaited, and goes back to its replica.
        """
        job = await self._fetch(run)
        if job is not None:
            self.fail(job, Revoked() if run in self._revoked else Returned())
        else:
            self.emitters.release(run)
        if nobody_waits is not None:
            await nobody_waits()

    async def _serve(self, run: RunId, work: Work[T], nobody_waits: Afterwards) -> T | None:
        try:
            job = await self._fetch(run)
        except asyncio.CancelledError:
            job = None
        # redis-py may swallow a cancel while it connects; an adapter may be refused after the request was placed.
        if job is None or run in self._returned or not self.adapters.has(job):
            await self._not_begun(run, nobody_waits)
            return None
        self._outcomes[run].begins(job)
        try:
            await self._admit(job, nobody_waits)
            with self.adapters.of(job):
                if job.aside:
                    return await work(job)
                with self.has(job), self.gate(job).online(job):
                    return await work(job)
        except asyncio.CancelledError:
            if run in self._dropped:
                self.emitters.release(run)
                return None
            returns = self._stopping or run in self._returned
            self.fail(job, Revoked() if run in self._revoked else Returned() if returns else Cancelled())
        except EngineDead as exc:
            self.fail(job, exc)
            log.critical("engine_died", run=run, **job.names)
            os.kill(os.getpid(), signal.SIGTERM)  # else routing would prefer this worker, as the least loaded one
        except Returned as exc:
            self.fail(job, exc)
        except XylemError as exc:
            if exc.status >= 500:
                log.error("generate_failed", run=run, **job.names, code=exc.code)
            self.fail(job, exc)
        except Exception as exc:  # noqa: BLE001 (one that the adapter didn't translate; its text may contain the prompt)
            log.error("generate_failed", run=run, **job.names, error=type(exc).__name__)
            self.fail(job, EngineFailed(f"The engine failed ({type(exc).__name__})."))
        return None

    async def _admit(self, job: Job, nobody_waits: Afterwards) -> None:
        """Raises: Returned; HandoffFailed for a prompt to be computed with weights that aren't here."""
        if not self.closed and job.weights in (None, self.weights):
            return
        if nobody_waits is not None:
            await nobody_waits()
        if not self.closed and job.stage_of(self.worker).kind in ("prefill", "encode_pictures"):
            raise HandoffFailed("The worker of an earlier stage has other weights.")
        raise Returned

    def fail(self, job: Job, error: XylemError) -> None:
        """Ends a request, or this worker's part of it if the other worker has all of it."""
        if outcome := self._outcomes.get(job.run):
            outcome.error = error
        if job.at_once and job.stage_of(self.worker).kind == "prefill":
            self.emitters.of(job).left(job.run)  # the decode worker has the request, and computes the prompt itself
        else:
            self.emitters.of(job).end(job, Failed(job.request, job.attempt, error.code, error.message, error.param))

    @property
    def runs(self) -> set[RunId]:
        """The runs that tasks have begun and not finished."""
        return set(self._running)

    def outcome(self, job: Job) -> Outcome:
        return self._outcomes[job.run]

    async def _revoke_waiting(self, requests: Collection[RequestId]) -> None:
        """Ends those that have a place here and have not begun. Their messages find no record."""
        try:
            (places,) = await self.wire.execute([("HKEYS", self.keys.reservations(self.worker))])
        except StoreDown as exc:  # they end when their messages are taken
            log.warning("waiting_not_revoked", error=exc.message)
            return
        for run in [RunId(place.decode()) for place in places]:
            if request_of(run) in requests and run not in self._running:
                job = await self._fetch(run)
                if job is not None and run not in self._running:
                    self.fail(job, Revoked())

    async def return_if_lost(self, run: RunId) -> bool:
        """Gives back a run reserved here that has no message, unless its message is yet to come.

        Returns whether it was given back.
        """
        job = await self._fetch(run)
        if job is None:
            return False
        encoders = [stage.worker for stage in job.stages if stage.kind == "encode_pictures"]
        if encoders and self.worker not in encoders and await self.redis.scard(self.keys.encoded(run)) < len(encoders):
            return False  # its message comes when the pictures are encoded
        at_first = self.worker in (*encoders, job.stages[len(encoders)].worker)
        if not at_first and not job.at_once and job.prefilled is None:
            return False  # its message comes when the prompt is computed
        self.fail(job, Returned())
        return True

    async def hand_back(self, handoff: Handoff | None, request: RequestId, attempt: int) -> None:
        """Gives a request that never began here back to its API replica."""
        job = await self._fetch(run_id(request, attempt))
        if job is not None and isinstance(handoff, KvHandle):
            self.emitters.of(job).emit(job.reply_to, PrefillDone(request, attempt, job.prefilled, handoff))
        elif job is not None:
            self.fail(job, Returned())

    async def _fetch(self, run: RunId) -> Job | None:
        return await fetch(self._wires[0], self.keys, run)


def end_process(task: "asyncio.Task[None]") -> None:
    """Ends the process when a vital task (emitter, lease, …) has failed: its requests are then placed elsewhere."""
    if not task.cancelled() and task.exception() is not None:
        log.critical("worker_broke", exc_info=task.exception())
        os._exit(1)


RUNNER = ProcessSlot[Runner]("a worker whose engine has been loaded")
