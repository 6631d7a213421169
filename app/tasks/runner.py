"""Runs requests on the engine, on the engine's own event loop in its own thread.

A Celery task is a thread that submits and waits; the engine batches. `set_current` is called once, by the
worker's bootstep; the tasks of the process find their Runner through `current`.
"""

import asyncio
import time
from collections.abc import Coroutine
from contextlib import aclosing
from threading import Thread
from typing import Any, TypeVar, cast

import uvloop
from redis.asyncio import Redis
from redis.exceptions import RedisError

from app.engines.base import Engine, EngineInfo, GenerateRequest
from app.errors import Cancelled, DeadlineOver, EngineFailed, Returned, WorkerLost, XylemError
from app.ids import RequestId, WorkerId
from app.keys import Keys
from app.messages import Delta, Done, Failed, Job, decode_job
from app.settings import Settings
from app.store import async_client
from app.tasks.emitter import Emitter
from app.telemetry import logger

log = logger(__name__)
T = TypeVar("T")
_RETRY_S = 0.2


class Runner:
    """One engine, the requests on it, and the way their tokens leave."""

    def __init__(self, engine: Engine, worker: WorkerId, settings: Settings) -> None:
        self.engine, self.worker, self.settings = engine, worker, settings
        self.keys = Keys(settings.deployment)
        self.redis: Redis
        self.emitter: Emitter
        self._running: dict[RequestId, asyncio.Task[None]] = {}
        self._stopping = False
        self._loop = uvloop.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="engine", daemon=True)
        self._thread.start()

    # From any thread.

    def load(self) -> EngineInfo:
        """Blocks until the engine can serve. Raises what Engine.start raises."""
        return self.call(self._load())

    def run(self, request: RequestId, attempt: int) -> None:
        """Blocks until the request's terminal event has been emitted."""
        self.call(self._run(request, attempt))

    def call(self, coro: Coroutine[Any, Any, T]) -> T:
        """Runs `coro` on the engine's loop and waits for it."""
        return asyncio.run_coroutine_threadsafe(coro, self._loop).result()

    def give_up_after(self, seconds: float) -> None:
        """What still runs then ends with WorkerLost."""
        self._loop.call_soon_threadsafe(self._loop.call_later, seconds, self._give_up)

    def close(self) -> None:
        """Ends what still runs, then engine, loop and thread."""
        self.call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    # On the engine's loop.

    @property
    def running(self) -> int:
        return len(self._running)

    def cancel(self, request: RequestId) -> None:
        """Unknown requests are ignored: they have ended, or their record is gone and they won't begin."""
        task = self._running.get(request)
        if task is not None:
            task.cancel()

    async def _load(self) -> EngineInfo:
        info = await self.engine.start()
        self.redis = async_client(self.settings.redis_url)
        self.emitter = Emitter(self.redis, self.keys, self.worker, self.settings)
        self._emitting = asyncio.create_task(self.emitter.run())
        return info

    def _give_up(self) -> None:
        self._stopping = True
        for task in self._running.values():
            task.cancel()

    async def _close(self) -> None:
        self._give_up()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        await self.emitter.drained()
        self._emitting.cancel()
        await self.engine.close()
        await self.redis.aclose()

    async def _run(self, request: RequestId, attempt: int) -> None:
        # A task of its own, so that `cancel` ends the work and not this waiting.
        work = self._running[request] = asyncio.ensure_future(self._serve(request, attempt))
        await asyncio.wait([work])
        del self._running[request]

    async def _serve(self, request: RequestId, attempt: int) -> None:
        try:
            job = await self._fetch(request, attempt)
        except asyncio.CancelledError:
            job = None
        if job is None:  # cancelled while it was queued: nobody waits any more
            self.emitter.release(request, attempt)
            return
        try:
            done = await self._generate(job)
        except asyncio.CancelledError:
            self._fail(job, WorkerLost("The worker was stopped.") if self._stopping else Cancelled())
        except TimeoutError:
            self._fail(job, DeadlineOver())
        except XylemError as exc:
            self._fail(job, exc)
        except Exception as exc:  # noqa: BLE001 (what the adapter let through; its text may hold the prompt)
            log.error("generate_failed", request=request, error=type(exc).__name__)
            self._fail(job, EngineFailed(f"The engine failed ({type(exc).__name__})."))
        else:
            self.emitter.end(job, done)

    def _fail(self, job: Job, error: XylemError) -> None:
        self.emitter.end(job, Failed(job.request, job.attempt, error.code, error.message))

    async def _generate(self, job: Job) -> Done:
        request = GenerateRequest(job.request, job.prompt, job.sampling, job.priority)
        cached = 0
        emit, api, id_, attempt = self.emitter.emit, job.reply_to, job.request, job.attempt
        async with asyncio.timeout(job.deadline - time.time()), aclosing(self.engine.generate(request)) as steps:
            async for o in steps:
                if o.finish == "abort":  # not by us: a cancel ends this coroutine instead
                    raise EngineFailed("The engine gave the request up.")
                cached = o.cached_tokens or cached
                emit(
                    api,
                    Delta(id_, attempt, o.text, o.tokens, o.index, o.finish, o.stop, o.logprobs, o.prompt_logprobs),
                )
        return Done(id_, attempt, cached)

    async def hand_back(self, request: RequestId, attempt: int) -> None:
        """Tells the API replica that this request was never begun here."""
        job = await self._fetch(request, attempt)
        if job is not None:
            self._fail(job, Returned())

    async def _fetch(self, request: RequestId, attempt: int) -> Job | None:
        """The request's record. Waits while Redis is away: without the record nobody could be told."""
        while True:
            try:
                record = cast(bytes | None, await self.redis.get(self.keys.request(request, attempt)))
            except (RedisError, OSError) as exc:
                log.warning("record_not_read", request=request, error=repr(exc))
                await asyncio.sleep(_RETRY_S)
            else:
                return decode_job(record) if record is not None else None


_current: Runner | None = None


def set_current(runner: Runner) -> None:
    global _current  # noqa: PLW0603 (one engine a process: set once, asserted on read)
    assert _current is None, "a process has one engine"
    _current = runner


def current() -> Runner:
    assert _current is not None, "tasks run in a worker whose engine has been loaded"
    return _current
