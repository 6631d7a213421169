"""One data-parallel rank of the mock engine: a KV cache, a scheduler, the task that steps it, and its handoffs."""

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from app.engines.kv_publisher import KvPublisher
from app.engines.mock.args import MockArgs
from app.engines.mock.blocks import BlockManager
from app.engines.mock.choice import MockChoice
from app.engines.mock.handoff import Handoffs
from app.engines.mock.inventory import Content, RankBlocks, note, only
from app.engines.mock.lane import Lane
from app.engines.mock.link import Link
from app.engines.mock.rendezvous import Rooms
from app.engines.mock.scheduler import Scheduler
from app.engines.mock.tiers import Load, tiers_of
from app.engines.steps import StepMeter
from app.errors import EngineFailed, HandoffFailed, RequestError
from app.messages.handoff import Handoff
from app.messages.job import KvTransfer
from app.pools.schema import Pool

_MAX_LAG_S = 0.1  # simulated time that a late process catches up by shorter steps, at most
_CONTENTS = 1000  # blocks that an inventory knows and the engine may have dropped

log = structlog.get_logger(__name__)


class Core:
    """Steps at the pace of the simulated hardware while there is work."""

    def __init__(self, args: MockArgs, pool: Pool, rank: int, rooms: Rooms, steps: StepMeter) -> None:
        """Raises: SettingsError."""
        self._args, self._rank, self._steps = args, rank, steps
        self.blocks = BlockManager(args.total_blocks, pool.block_size, record_events=args.kv_events is not None)
        self.blocks.tiers = tiers_of(pool, args, self.blocks.tell)
        self.host_lane, self.store_lane = (
            Lane(speed, args.speedup) for speed in (args.tiers.host_gb_per_s, args.tiers.store_gb_per_s)
        )
        self.scheduler = Scheduler(args, self.blocks, pool.max_running)
        self.publisher: KvPublisher | None = None
        self._contents: dict[int, Content] = {}  # for an inventory
        self._most_contents = _CONTENTS
        self._work = asyncio.Event()  # set when there may be something to compute
        link = partial(Link, args, pool.block_size, rank)
        self.handoffs = Handoffs(args.handoff, link, self.blocks, rooms, self._work.set)
        self._fetches: dict[MockChoice, asyncio.Task[KvTransfer | None]] = {}
        self._declining: set[asyncio.Task[None]] = set()
        self._stepper: asyncio.Task[None] | None = None
        self.hangs = self._paused = False
        self.holds_new = False  # choices that are added wait for `resume`, also while others are running
        self._held: list[MockChoice] = []
        self._parked = asyncio.Event()  # set while nothing is computed
        self._broke: Callable[[Exception], None]

    async def start(self, broke: Callable[[Exception], None]) -> None:
        """`broke`: called when a step fails. Raises: SettingsError; EngineFailed when an endpoint can't be bound."""
        self._broke = broke
        await self.handoffs.link.start()
        if self._args.kv_events is not None:
            self.publisher = KvPublisher(self._args.kv_events.of_rank(self._rank), self._rank)
        self._stepper = asyncio.create_task(self._run(), name=f"mock-core-{self._rank}")

    def add(self, choice: MockChoice) -> None:
        if self.holds_new and not any(other is not choice and other.table.blocks for other in choice.stream.choices):
            self._held.append(choice)
            return
        self.scheduler.add(choice)
        self._work.set()

    async def pause(self) -> None:
        """Returns when no step is being computed; requests stay where they are."""
        self._paused = True
        self._work.set()
        await self._parked.wait()

    def resume(self) -> None:
        self._paused = self.holds_new = False
        choices, self._held = self._held, []
        for choice in choices:
            if not choice.finished:
                self.scheduler.add(choice)
        self._work.set()

    async def forget(self) -> None:
        """Forget all KV of a paused core, also of requests: they are computed again. Raises: EngineFailed."""
        await asyncio.gather(*self._fetches.values(), return_exceptions=True)
        await asyncio.sleep(0)  # lets `_fetched` run
        if self.handoffs.lent_blocks:
            raise EngineFailed("KV is kept for other engines.")
        for choice in self.scheduler.restart():
            if choice.source is not None:  # KV of other weights
                self.decline(choice.source)
                choice.source = None
                for other in choice.stream.choices:
                    if other is not choice and not other.finished:
                        self.scheduler.add(other)
        if not self.clear():
            raise EngineFailed("KV is on its way to other engines.")

    def remove(self, choice: MockChoice) -> None:
        """Forget a choice. Its blocks are free when this returns, or soon after if they are being fetched."""
        fetch = self._fetches.get(choice)
        if fetch is not None:
            fetch.cancel()
        elif choice.source is not None:
            self.decline(choice.source)
            choice.source = None
        self.scheduler.remove(choice)
        if choice in self._held:
            self._held.remove(choice)
        self._work.set()

    def decline(self, handoff: Handoff) -> None:
        """Tell the other engine, in the background, that its KV won't be fetched."""
        task = asyncio.create_task(self.handoffs.decline(handoff), name="mock-decline")
        self._declining.add(task)
        task.add_done_callback(self._declining.discard)

    def clear(self) -> bool:
        """Forget all cached prefixes; False, and nothing done, while a request holds blocks."""
        was_cleared = self.blocks.clear()
        self._publish()
        return was_cleared

    async def close(self) -> None:
        """All choices have been removed."""
        if self._stepper is not None:
            self._stepper.cancel()
            await asyncio.gather(self._stepper, return_exceptions=True)
            self._stepper = None
        # No block may be written to after the memory is freed. Each fetch has its time limit.
        await asyncio.gather(*self._fetches.values(), return_exceptions=True)
        await asyncio.sleep(0)  # lets `_fetched` run, which may decline
        await asyncio.gather(*self._declining, return_exceptions=True)
        await self.handoffs.close()
        if self.publisher is not None:
            await self.publisher.close()
            self.publisher = None

    async def _run(self) -> None:
        try:
            await self._step_forever()
        except Exception as exc:  # no consumer may wait for ever
            log.exception("mock engine broke", action="engine_failed")
            self._broke(exc)

    async def _step_forever(self) -> None:
        clock = asyncio.get_running_loop().time
        scheduler = self.scheduler
        deadline = end = clock()
        while True:
            if self.hangs:
                await asyncio.get_running_loop().create_future()
            plan = None if self._paused else scheduler.plan()
            for choice in plan.fetching if plan else ():
                self._fetch(choice)
            if plan is None or plan.idle:
                self._publish()
                self._work.clear()
                self._parked.set()
                await self._work.wait()
                self._parked.clear()
                deadline = end = clock()
                continue
            # Steps have absolute deadlines, so a late wake-up shortens the next step.
            deadline = max(deadline, clock() - _MAX_LAG_S) + plan.duration
            await asyncio.sleep(max(0.0, deadline - clock()))
            began, end = end, clock()
            if not plan.prefill:
                self._steps.add(plan.running, end - began)
            for choice in plan.sampled:
                if not choice.finished:  # it may have been aborted meanwhile
                    self._advance(choice)
            self._publish()

    def _advance(self, choice: MockChoice) -> None:
        try:
            output = choice.prefilled() if choice.lends else choice.advance()
        except (EngineFailed, RequestError) as exc:  # a grammar's failure ends its own request only
            choice.finished = True
            self.scheduler.remove(choice)
            choice.stream.fail(exc)
            return
        if choice.finished:
            self.scheduler.remove(choice)
        elif choice.lends:
            self.scheduler.park(choice)
        choice.stream.put(output)

    def _fetch(self, choice: MockChoice) -> None:
        fetch = self.handoffs.fetch(choice) if choice.load is None else self._load(choice.load)
        task = asyncio.create_task(fetch, name="mock-fetch")
        self._fetches[choice] = task
        task.add_done_callback(partial(self._fetched, choice))

    async def _load(self, load: Load) -> None:
        """Takes the time in which stored blocks get into host memory, and all of them from there to the device."""
        size = self._args.handoff.block_bytes
        if load.stored:
            await self.store_lane.move(load.stored * size)
        await self.host_lane.move(len(load.blocks) * size)

    def _fetched(self, choice: MockChoice, fetch: asyncio.Task[KvTransfer | None]) -> None:
        """The fetch has ended, and nothing writes into the choice's blocks: it runs, or they become free."""
        del self._fetches[choice]
        self._work.set()
        failure = None if fetch.cancelled() else fetch.exception()
        if not choice.finished and not fetch.cancelled() and failure is None:
            self._arrived(choice, fetch.result())
            return
        self.scheduler.fail(choice)
        if choice.source is not None:
            self.decline(choice.source)
            choice.source = None
        if isinstance(failure, HandoffFailed):
            choice.stream.fail(failure)
        elif isinstance(failure, Exception):
            log.error("mock engine broke", action="engine_failed", exc_info=failure)
            self._broke(failure)

    def _arrived(self, choice: MockChoice, transfer: KvTransfer | None) -> None:
        """`transfer`: from another engine; None: loaded from tiers."""
        if transfer is None:
            self.scheduler.loaded(choice)
            return
        choice.stream.pulled = transfer
        self.scheduler.land(choice, transfer.tokens)
        for other in choice.stream.choices:  # they find the prompt in the cache
            if other is not choice and not other.finished:
                self.add(other)

    def held(self) -> RankBlocks:
        """The blocks that this core holds, as an inventory tells them."""
        note(self._contents, self.blocks.events)  # those of a step that is not over
        tiers = self.blocks.tiers
        device, host = [*self.blocks.cached], [*tiers.host] if tiers else []
        return RankBlocks(device, host, only(self._contents, [*device, *host]))

    def _publish(self) -> None:
        if self.publisher is not None and self.blocks.events:
            if self._args.inventory:
                note(self._contents, self.blocks.events)
                if len(self._contents) > self._most_contents:
                    self._contents = self.held().contents
                    self._most_contents = 2 * len(self._contents) + _CONTENTS
            self.publisher.publish(self.blocks.events)
            self.blocks.events = []
