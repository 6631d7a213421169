"""One data-parallel rank of the mock engine: a KV cache, a scheduler, and the task that steps it."""

import asyncio
from collections.abc import Callable

import structlog

from app.engines.mock.args import MockArgs
from app.engines.mock.blocks import BlockManager
from app.engines.mock.choice import Choice
from app.engines.mock.kv_events import KvPublisher
from app.engines.mock.scheduler import Scheduler
from app.pools import Pool

_MAX_LAG_S = 0.1  # a busy process may catch up this much of simulated time by shorter steps, not more

log = structlog.get_logger(__name__)


class Core:
    """Steps at the pace of the simulated hardware while there is work."""

    def __init__(self, args: MockArgs, pool: Pool, rank: int) -> None:
        self._args, self._rank = args, rank
        self.blocks = BlockManager(args.total_blocks, pool.block_size, record_events=args.kv_events is not None)
        self.scheduler = Scheduler(args, self.blocks, pool.max_running)
        self.publisher: KvPublisher | None = None
        self._work = asyncio.Event()
        self._stepper: asyncio.Task[None] | None = None

    def start(self, broke: Callable[[Exception], None]) -> None:
        """`broke` is told when stepping fails. Raises: EngineFailed when an endpoint can't be bound."""
        if self._args.kv_events is not None:
            self.publisher = KvPublisher(self._args.kv_events.of_rank(self._rank), self._rank)
        self._stepper = asyncio.create_task(self._run(broke), name=f"mock-core-{self._rank}")

    def add(self, choice: Choice) -> None:
        self.scheduler.add(choice)
        self._work.set()

    def clear(self) -> bool:
        """Forget all cached prefixes; False, and nothing done, while a request holds blocks."""
        done = self.blocks.clear()
        self._publish()
        return done

    async def close(self) -> None:
        if self._stepper is not None:
            self._stepper.cancel()
            await asyncio.gather(self._stepper, return_exceptions=True)
            self._stepper = None
        if self.publisher is not None:
            await self.publisher.close()
            self.publisher = None

    async def _run(self, broke: Callable[[Exception], None]) -> None:
        try:
            await self._step_forever()
        except Exception as exc:  # whatever broke, no consumer may wait for ever
            log.exception("mock engine broke", action="engine_failed")
            broke(exc)

    async def _step_forever(self) -> None:
        clock = asyncio.get_running_loop().time
        scheduler = self.scheduler
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
        if self.publisher is not None and self.blocks.events:
            self.publisher.publish(self.blocks.events)
            self.blocks.events = []
