"""The mock engine: one task steps the scheduler at the pace of the simulated hardware."""

import asyncio
from collections.abc import AsyncGenerator
from itertools import count

import structlog

from app.engines.base import EngineInfo, EngineStats, GenerateRequest, KvEventSource, StepOutput
from app.engines.mock.args import parse_args
from app.engines.mock.blocks import BlockManager
from app.engines.mock.checks import check_request
from app.engines.mock.choice import Choice, Stream
from app.engines.mock.kv_events import KvPublisher
from app.engines.mock.scheduler import Scheduler
from app.engines.mock.vocabulary import Vocabulary
from app.errors import EngineDead, EngineFailed, RequestError, SettingsError
from app.ids import RunId
from app.settings import Pool
from app.tokenizer import load_tokenizer

_MAX_LAG_S = 0.1  # a busy process may catch up this much of simulated time by shorter steps, not more

log = structlog.get_logger(__name__)


class MockEngine:
    """Implements `app.engines.base.Engine`."""

    def __init__(self, pool: Pool) -> None:
        """Raises: SettingsError (unknown or bad arguments)."""
        self._pool = pool
        self._args = args = parse_args(pool.args)
        capacity = args.total_blocks * pool.block_size
        if capacity < pool.context_len:
            raise SettingsError(
                f"args.total_blocks={args.total_blocks}: {capacity} tokens don't hold one request of {pool.context_len}"
            )
        self._blocks = BlockManager(args.total_blocks, pool.block_size, record_events=args.kv_events is not None)
        self._scheduler = Scheduler(args, self._blocks, pool.max_running)
        self._streams: dict[RunId, Stream] = {}
        self._arrivals = count()
        self._work = asyncio.Event()
        self._vocabulary: Vocabulary | None = None  # set by start
        self._publisher: KvPublisher | None = None
        self._stepper: asyncio.Task[None] | None = None
        self._failure: EngineFailed | None = None

    async def start(self) -> EngineInfo:
        await asyncio.sleep(self._args.load_s / self._args.speedup)
        if self._args.fail_to_load is not None:
            raise EngineFailed(self._args.fail_to_load)
        tokenizer = await asyncio.to_thread(load_tokenizer, self._pool.model_dir, self._pool.chat_template)
        self._vocabulary = await asyncio.to_thread(Vocabulary, tokenizer)
        if self._args.kv_events is not None:
            self._publisher = KvPublisher(self._args.kv_events)
        self._stepper = asyncio.create_task(self._run(), name="mock-engine")
        return EngineInfo(
            block_size=self._pool.block_size,
            total_blocks=self._args.total_blocks,
            max_running=self._pool.max_running,
            max_model_len=self._pool.context_len,
        )

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[StepOutput, None]:
        stream = self._submit(request)
        try:
            while True:
                for output in await stream.take():
                    yield output
                if not stream.open_choices:
                    return
        finally:
            self._drop(request.id)

    async def abort(self, request: RunId) -> None:
        stream = self._streams.get(request)
        if stream is not None:
            self._abort(stream)

    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            used_blocks=self._blocks.used,
            prefill_tokens=self._scheduler.prefill_tokens,
        )

    def kv_events(self) -> KvEventSource | None:
        return self._publisher.source if self._publisher else None

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, and nothing done, while a request holds blocks."""
        done = self._blocks.clear()
        self._publish()
        return done

    async def close(self) -> None:
        self._failure = self._failure or EngineFailed("The engine is closed.")
        for stream in list(self._streams.values()):
            self._abort(stream)
        if self._stepper is not None:
            self._stepper.cancel()
            await asyncio.gather(self._stepper, return_exceptions=True)
            self._stepper = None
        if self._publisher is not None:
            await self._publisher.close()
            self._publisher = None

    def _submit(self, request: GenerateRequest) -> Stream:
        if self._failure is not None:
            raise type(self._failure)(self._failure.message)
        if self._vocabulary is None:
            raise EngineFailed("The engine has not been started.")
        if request.id in self._streams:
            raise RequestError(f"A request with the id {request.id} is running already.")
        check_request(request, vocabulary_size=self._vocabulary.size, context_len=self._pool.context_len)
        stream = self._streams[request.id] = Stream()
        stream.open_choices = request.sampling.n
        arrival = next(self._arrivals)
        for index in range(request.sampling.n):
            choice = Choice(
                request, stream, self._vocabulary, index=index, arrival=arrival,
                context_len=self._pool.context_len, answer_tokens=self._args.answer_tokens,
            )  # fmt: skip
            stream.choices.append(choice)
            self._scheduler.add(choice)
        self._work.set()
        return stream

    def _abort(self, stream: Stream) -> None:
        for choice in stream.choices:
            if not choice.finished:
                self._scheduler.remove(choice)
                stream.put(choice.abort())

    def _drop(self, request: RunId) -> None:
        self._abort(self._streams.pop(request))

    async def _run(self) -> None:
        try:
            await self._step_forever()
        except Exception as exc:  # whatever broke, no consumer may wait for ever
            log.exception("mock engine broke", action="engine_failed")
            self._failure = EngineDead(f"The mock engine broke: {exc!r}")
            for stream in self._streams.values():
                stream.fail(self._failure)

    async def _step_forever(self) -> None:
        clock = asyncio.get_running_loop().time
        scheduler = self._scheduler
        deadline = clock()
        while True:
            if not scheduler.running and not scheduler.waiting:
                self._work.clear()
                await self._work.wait()
                deadline = clock()
            plan = scheduler.plan()
            # Steps are paced against an absolute deadline, so a late wake-up shortens the next step.
            deadline = max(deadline, clock() - _MAX_LAG_S) + plan.duration
            await asyncio.sleep(max(0.0, deadline - clock()))
            for choice in plan.sampled:
                if not choice.finished:  # it may have been aborted meanwhile
                    choice.stream.put(choice.advance())
                    if choice.finished:
                        scheduler.remove(choice)
            self._publish()

    def _publish(self) -> None:
        if self._publisher is not None and self._blocks.events:
            self._publisher.publish(self._blocks.events)
            self._blocks.events = []
