"""Runs requests on the engine, on the engine's own event loop in its own thread.

A Celery task is a thread that submits and waits; the engine batches. `RUNNER` is set once, by the
worker's bootstep; the tasks of the process find it there.
"""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from itertools import islice
from threading import Thread
from typing import Any, TypeVar

import uvloop
from redis.asyncio import Redis
from redis.exceptions import RedisError

from app.engines.base import EncodeRequest, Engine, EngineInfo, GenerateRequest
from app.errors import Cancelled, EngineDead, EngineFailed, Returned, StoreDown, XylemError
from app.ids import RequestId, RunId, WorkerId, run_id
from app.keys import Keys
from app.messages import Failed, Handoff, Job, KvHandle, PrefillDone, Stage
from app.pools import Aside
from app.runner.adapters_in_use import AdaptersInUse
from app.runner.job_record import fetch
from app.runner.process_slot import ProcessSlot
from app.runner.throughput import Throughput
from app.runner.token_emitter import TokenEmitter
from app.runner.yield_gate import YieldGate
from app.settings import Settings
from app.store import async_client
from app.telemetry import logger

log = logger(__name__)
T = TypeVar("T")
Work = Callable[[Job], Coroutine[Any, Any, T]]
Afterwards = Callable[[], Awaitable[None]] | None
_BEHIND_ALL = 2**32  # what is added to the priority of those that give way: no client's is as high
_RULES = Aside()
_LAST_WORDS_S = 5.0  # how long a worker that ends waits for Redis to take its last events


class Runner:
    """One engine, the requests on it, and the way their tokens leave."""

    def __init__(self, engine: Engine, worker: WorkerId, settings: Settings, rules: Aside = _RULES) -> None:
        """`rules` are those of requests that give way to others."""
        self.engine, self.worker, self.settings, self._rules = engine, worker, settings, rules
        self.keys = Keys(settings.deployment)
        self.redis: Redis
        self.emitter: TokenEmitter
        self.paces: Throughput
        self.gates: list[YieldGate] = []  # of each rank
        self.adapters = AdaptersInUse()
        self._running: dict[RunId, asyncio.Task[Any]] = {}
        self._returned: set[RunId] = set()  # of these, what is to be placed elsewhere
        self._background: set[asyncio.Task[None]] = set()
        self._dropped: set[RunId] = set()  # of these, what nobody awaits: its API replica is dead
        self._stopping = False
        self._loop = uvloop.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="engine", daemon=True)
        self._thread.start()

    # From any thread.

    def load(self) -> EngineInfo:
        """Blocks until the engine can serve. Raises what Engine.start raises."""
        return self.call(self._load())

    def run(self, request: RequestId, attempt: int, work: Work[T], nobody_waits: Afterwards = None) -> T | None:
        """Blocks until this worker's part of a request is over, and returns what `work` does.

        `work` ends the request with a terminal event or leaves it to another worker; when it raises, the event is
        Failed and None is returned. So it is when the request was cancelled before: then `nobody_waits` is called.
        """
        return self.call(self._run(run_id(request, attempt), work, nobody_waits))

    def tell(self, job: Job, event: PrefillDone | Failed) -> None:
        """Tells the API replica of a computed prompt's decode task."""
        self._loop.call_soon_threadsafe(self.emitter.emit, job.reply_to, event)

    def call(self, coro: Coroutine[Any, Any, T]) -> T:
        """Runs `coro` on the engine's loop and waits for it."""
        return asyncio.run_coroutine_threadsafe(coro, self._loop).result()

    def soon(self, call: Callable[[], None]) -> None:
        """On the engine's loop."""
        self._loop.call_soon_threadsafe(call)

    def give_up_after(self, seconds: float) -> None:
        """Requests that still run then go back to their API replicas."""
        self._loop.call_soon_threadsafe(self._loop.call_later, seconds, self._give_up)

    def close(self) -> None:
        """Ends what still runs, then engine, loop and thread."""
        self.call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    # On the engine's loop.

    @property
    def stopping(self) -> bool:
        """A request cancelled now goes back to its API replica."""
        return self._stopping

    async def lent_until(self, seconds: float) -> None:
        """Returns when other engines have taken what this one computed for them, or the time is over."""
        end = time.monotonic() + seconds
        while self.engine.stats().lent_blocks and time.monotonic() < end:  # noqa: ASYNC110 (engines tell nobody)
            await asyncio.sleep(0.05)

    def cancel(self, run: RunId) -> None:
        """One that isn't running has ended, or waits in the queue, and won't begin: its record is gone."""
        task = self._running.get(run)
        if task is not None:
            task.cancel()
        else:
            self.emitter.release(run)

    def drop(self, run: RunId) -> None:
        """Cancels one of a dead API replica: nobody is told."""
        if run in self._running:
            self._dropped.add(run)
        self.cancel(run)

    def give_all_back(self) -> None:
        """Running requests go back to their API replicas, which may have placed them elsewhere."""
        self._returned |= self.runs
        for task in self._running.values():
            task.cancel()

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Does it while requests go on."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _load(self) -> EngineInfo:
        self.redis = async_client(self.settings.redis_url)
        try:  # before the engine, which may take minutes
            await self.redis.ping()
        except (RedisError, OSError) as exc:
            raise StoreDown(f"XYLEM_REDIS_URL: Redis does not answer: {exc}") from exc
        info = await self.engine.start()
        self.paces = Throughput(info.ranks, info.max_running * info.ranks)
        self.gates = [YieldGate(info, self._rules, self.engine.stats, self.paces.read) for _ in range(info.ranks)]
        self.block_size = info.block_size
        self.emitter = TokenEmitter(self.redis, self.keys, self.worker, self.settings)
        self._emitting = asyncio.create_task(self.emitter.run())
        self._emitting.add_done_callback(end_process)
        return info

    def _give_up(self) -> None:
        self._stopping = True
        for task in self._running.values():
            task.cancel()

    async def _close(self) -> None:
        self._give_up()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._running.values(), *self._background, return_exceptions=True)
        await self.emitter.drained(_LAST_WORDS_S)
        self._emitting.cancel()
        await self.engine.close()
        await self.redis.aclose()

    def request(self, job: Job, handoff: Handoff | None = None) -> GenerateRequest:
        return GenerateRequest(
            job.run, job.prompt, job.sampling, _priority(job), self._rank(job), job.cache_salt, handoff, job.begun,
            job.adapter,
        )  # fmt: skip

    def encode_request(self, job: Job) -> EncodeRequest:
        """Of a job with inputs."""
        assert job.inputs is not None
        rest = iter(job.prompt)
        inputs = [list(islice(rest, length)) for length in job.inputs.lengths]
        return EncodeRequest(job.run, inputs, job.inputs.task, job.inputs.dimensions, _priority(job), self._rank(job))

    def gate(self, job: Job) -> YieldGate:
        return self.gates[self._rank(job)]

    def prefilled(self, job: Job, tokens: int) -> None:
        """So many tokens of its prompt were computed: measures the pace."""
        self.paces.first_token(job, self._rank(job), tokens)
        self.gate(job).computed(job.run, tokens)

    def has(self, job: Job) -> AbstractContextManager[None]:
        """While the engine has the request, or gets it next."""
        return self.paces.has(job)

    def _rank(self, job: Job) -> int:
        return self._stage(job).rank

    def _stage(self, job: Job) -> Stage:
        """This worker's."""
        return next((stage for stage in job.stages if stage.worker == self.worker), job.stages[-1])

    async def _run(self, run: RunId, work: Work[T], nobody_waits: Afterwards) -> T | None:
        if run in self._running:  # Celery publishes once more when it can't know whether it did
            log.warning("message_came_twice", run=run)
            return None
        # A task of its own, so that `cancel` ends the work and not this waiting.
        task: asyncio.Task[T | None] = asyncio.ensure_future(self._serve(run, work, nobody_waits))
        self._running[run] = task
        await asyncio.wait([task])
        del self._running[run]
        if task.cancelled():  # before it took its first step
            await self._not_begun(run, nobody_waits)
        self._returned.discard(run)
        self._dropped.discard(run)
        return None if task.cancelled() else task.result()

    async def _not_begun(self, run: RunId, nobody_waits: Afterwards) -> None:
        """Cancelled or refused before the engine had it. With a record it is awaited, and goes back to its replica."""
        job = await self._fetch(run)
        if job is not None:
            self._fail(job, Returned())
        else:
            self.emitter.release(run)
        if nobody_waits is not None:
            await nobody_waits()

    async def _serve(self, run: RunId, work: Work[T], nobody_waits: Afterwards) -> T | None:
        try:
            job = await self._fetch(run)
        except asyncio.CancelledError:
            job = None
        # A cancel while redis-py connects may get lost in there. Who placed it could not know that its adapter goes.
        if job is None or run in self._returned or not self.adapters.has(job):
            await self._not_begun(run, nobody_waits)
            return None
        try:
            with self.adapters.of(job):
                if job.aside:
                    return await work(job)
                with self.has(job), self.gate(job).online(job):
                    return await work(job)
        except asyncio.CancelledError:
            if run in self._dropped:
                self.emitter.release(run)
                return None
            self._fail(job, Returned() if self._stopping or run in self._returned else Cancelled())
        except EngineDead as exc:
            self._fail(job, exc)
            log.critical("engine_died", run=run, x_request_id=job.x_request_id)
            os.kill(os.getpid(), signal.SIGTERM)  # a worker without an engine would be the least loaded of all
        except Returned as exc:
            self._fail(job, exc)
        except XylemError as exc:
            if exc.status >= 500:
                log.error("generate_failed", run=run, x_request_id=job.x_request_id, code=exc.code)
            self._fail(job, exc)
        except Exception as exc:  # noqa: BLE001 (what the adapter let through; its text may hold the prompt)
            log.error("generate_failed", run=run, x_request_id=job.x_request_id, error=type(exc).__name__)
            self._fail(job, EngineFailed(f"The engine failed ({type(exc).__name__})."))
        return None

    def _fail(self, job: Job, error: XylemError) -> None:
        if job.at_once and self._stage(job).kind == "prefill":
            self.emitter.left(job.run)  # the other worker has the request, and computes the prompt itself
        else:
            self.emitter.end(job, Failed(job.request, job.attempt, error.code, error.message))

    @property
    def runs(self) -> set[RunId]:
        """The runs that tasks have taken and not finished."""
        return set(self._running)

    async def was_lost(self, run: RunId) -> bool:
        """A run that is reserved here and that no message brings: its API replica is told, if that is so."""
        job = await self._fetch(run)
        if job is None:
            return False
        comes_later = job.stages[0].worker != self.worker and not job.at_once
        if comes_later and job.prefilled is None:
            return False  # when its prompt is computed
        self._fail(job, Returned())
        return True

    async def hand_back(self, handoff: Handoff | None, request: RequestId, attempt: int) -> None:
        """Tells the API replica that this request was never begun here."""
        job = await self._fetch(run_id(request, attempt))
        if job is not None and isinstance(handoff, KvHandle):
            self.emitter.emit(job.reply_to, PrefillDone(request, attempt, job.prefilled, handoff))
        elif job is not None:
            self._fail(job, Returned())

    async def _fetch(self, run: RunId) -> Job | None:
        return await fetch(self.redis, self.keys, run)


def _priority(job: Job) -> int:
    return job.priority + _BEHIND_ALL if job.aside else job.priority


def end_process(task: "asyncio.Task[None]") -> None:
    """A worker whose tokens can't leave, or whose lease nobody keeps, has to go: its requests run elsewhere then."""
    if not task.cancelled() and task.exception() is not None:
        log.critical("worker_broke", exc_info=task.exception())
        os._exit(1)


RUNNER = ProcessSlot[Runner]("a worker whose engine has been loaded")
