"""Runs requests on the engine, on the engine's own event loop in its own thread.

A Celery task is a thread that submits and waits; the engine batches. `set_current` is called once, by the
worker's bootstep; the tasks of the process find their Runner through `current`.
"""

import asyncio
import os
import signal
import time
from collections.abc import Coroutine
from contextlib import aclosing
from threading import Thread
from typing import Any, TypeVar, cast

import uvloop
from redis.asyncio import Redis
from redis.exceptions import RedisError

from app.engines.base import Engine, EngineInfo, GenerateRequest
from app.errors import Cancelled, DeadlineOver, EngineDead, EngineFailed, Returned, StoreDown, XylemError
from app.ids import RequestId, RunId, WorkerId, run_id
from app.keys import Keys
from app.messages import Delta, Done, Failed, Job, decode_job
from app.routing.pace import PaceMeter
from app.settings import Settings
from app.store import async_client
from app.tasks.emitter import Emitter
from app.telemetry import logger

log = logger(__name__)
T = TypeVar("T")
_RETRY_S = 0.2
_LAST_WORDS_S = 5.0  # how long a worker that ends waits for Redis to take its last events


class Runner:
    """One engine, the requests on it, and the way their tokens leave."""

    def __init__(self, engine: Engine, worker: WorkerId, settings: Settings) -> None:
        self.engine, self.worker, self.settings = engine, worker, settings
        self.keys = Keys(settings.deployment)
        self.redis: Redis
        self.emitter: Emitter
        self.pace = PaceMeter()
        self._running: dict[RunId, asyncio.Task[None]] = {}
        self._stopping = False
        self._loop = uvloop.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="engine", daemon=True)
        self._thread.start()

    # From any thread.

    def load(self) -> EngineInfo:
        """Blocks until the engine can serve. Raises what Engine.start raises."""
        return self.call(self._load())

    def run(self, request: RequestId, attempt: int) -> None:
        """Blocks until the request has ended here: with its terminal event, or cancelled before it began."""
        self.call(self._run(request, attempt))

    def call(self, coro: Coroutine[Any, Any, T]) -> T:
        """Runs `coro` on the engine's loop and waits for it."""
        return asyncio.run_coroutine_threadsafe(coro, self._loop).result()

    def give_up_after(self, seconds: float) -> None:
        """What still runs then goes back to its API replicas."""
        self._loop.call_soon_threadsafe(self._loop.call_later, seconds, self._give_up)

    def close(self) -> None:
        """Ends what still runs, then engine, loop and thread."""
        self.call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    # On the engine's loop.

    def cancel(self, run: RunId) -> None:
        """One that isn't running has ended, or waits in the queue, and won't begin: its record is gone."""
        task = self._running.get(run)
        if task is not None:
            task.cancel()
        else:
            self.emitter.release(run)

    async def _load(self) -> EngineInfo:
        self.redis = async_client(self.settings.redis_url)
        try:  # before the engine, which may take minutes
            await self.redis.ping()
        except (RedisError, OSError) as exc:
            raise StoreDown(f"XYLEM_REDIS_URL: Redis does not answer: {exc}") from exc
        info = await self.engine.start()
        self.pace, self._seats = PaceMeter(info.ranks), info.max_running * info.ranks
        self.emitter = Emitter(self.redis, self.keys, self.worker, self.settings)
        self._emitting = asyncio.create_task(self.emitter.run())
        self._emitting.add_done_callback(end_process)
        return info

    def _give_up(self) -> None:
        self._stopping = True
        for task in self._running.values():
            task.cancel()

    async def _close(self) -> None:
        self._give_up()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        await self.emitter.drained(_LAST_WORDS_S)
        self._emitting.cancel()
        await self.engine.close()
        await self.redis.aclose()

    async def _run(self, request: RequestId, attempt: int) -> None:
        # A task of its own, so that `cancel` ends the work and not this waiting.
        run = run_id(request, attempt)
        work = self._running[run] = asyncio.ensure_future(self._serve(run))
        await asyncio.wait([work])
        del self._running[run]
        if work.cancelled():  # before it took its first step
            self.emitter.release(run)

    async def _serve(self, run: RunId) -> None:
        try:
            job = await self._fetch(run)
        except asyncio.CancelledError:
            job = None
        if job is None:  # cancelled while it was queued: nobody waits any more
            self.emitter.release(run)
            return
        self.pace.begin(run, time.monotonic())
        try:
            done = await self._generate(job)
        except asyncio.CancelledError:
            self._fail(job, Returned() if self._stopping else Cancelled())
        except TimeoutError:
            self._fail(job, DeadlineOver())
        except EngineDead as exc:
            self._fail(job, exc)
            log.critical("engine_died", run=run)
            os.kill(os.getpid(), signal.SIGTERM)  # a worker without an engine would be the least loaded of all
        except XylemError as exc:
            if exc.status >= 500:
                log.error("generate_failed", run=run, code=exc.code)
            self._fail(job, exc)
        except Exception as exc:  # noqa: BLE001 (what the adapter let through; its text may hold the prompt)
            log.error("generate_failed", run=run, error=type(exc).__name__)
            self._fail(job, EngineFailed(f"The engine failed ({type(exc).__name__})."))
        else:
            self.emitter.end(job, done)
        finally:
            self.pace.end(run, time.monotonic())

    def _fail(self, job: Job, error: XylemError) -> None:
        self.emitter.end(job, Failed(job.request, job.attempt, error.code, error.message))

    async def _generate(self, job: Job) -> Done:
        request = GenerateRequest(job.run, job.prompt, job.sampling, job.priority, job.rank, job.cache_salt)
        cached, prefilled = 0, False
        emit, api, id_, attempt = self.emitter.emit, job.reply_to, job.request, job.attempt
        async with asyncio.timeout(job.deadline - time.time()), aclosing(self.engine.generate(request)) as steps:
            async for o in steps:
                if o.finish == "abort":  # not by us: a cancel ends this coroutine instead
                    raise EngineFailed("The engine gave the request up.")
                cached = o.cached_tokens or cached
                if not prefilled:
                    prefilled = True
                    queued = len(self._running) > self._seats
                    self.pace.first_token(job.run, job.rank, len(job.prompt) - cached, time.monotonic(), queued=queued)
                    if o.finish is None or job.sampling.n > 1:
                        self.emitter.prefilled(job.run)
                emit(
                    api,
                    Delta(id_, attempt, o.text, o.tokens, o.index, o.finish, o.stop, o.logprobs, o.prompt_logprobs),
                )
        return Done(id_, attempt, cached)

    async def hand_back(self, request: RequestId, attempt: int) -> None:
        """Tells the API replica that this request was never begun here."""
        job = await self._fetch(run_id(request, attempt))
        if job is not None:
            self._fail(job, Returned())

    async def _fetch(self, run: RunId) -> Job | None:
        """The request's record. Waits while Redis is away: without the record nobody could be told."""
        while True:
            try:
                record = cast(bytes | None, await self.redis.get(self.keys.request(run)))
            except (RedisError, OSError) as exc:
                log.warning("record_not_read", run=run, error=repr(exc))
                await asyncio.sleep(_RETRY_S)
            else:
                return decode_job(record) if record is not None else None


def end_process(task: "asyncio.Task[None]") -> None:
    """A worker whose tokens can't leave, or whose lease nobody keeps, has to go: its requests run elsewhere then."""
    if not task.cancelled() and task.exception() is not None:
        log.critical("worker_broke", exc_info=task.exception())
        os._exit(1)


_current: Runner | None = None


def set_current(runner: Runner) -> None:
    global _current  # noqa: PLW0603 (one engine a process: set once, asserted on read)
    assert _current is None, "a process has one engine"
    _current = runner


def current() -> Runner:
    assert _current is not None, "tasks run in a worker whose engine has been loaded"
    return _current
