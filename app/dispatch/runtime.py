"""All that dispatch needs, in an API replica or a batch worker."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from redis.asyncio import Redis

from app.addresses.host_address import address_towards
from app.batch.file_store import FileStore
from app.batch.storage import Storage
from app.bounded.turn_threads import TurnThreads
from app.dispatch.answering.content_hook import ContentHook
from app.dispatch.answering.dispatcher import Dispatcher
from app.dispatch.answering.liveness import LivenessWatch
from app.dispatch.answering.token_inbox import TokenInbox
from app.dispatch.cells import Cells, Runs
from app.dispatch.fleet.cell import Cell
from app.dispatch.fleet.fleet_reader import FleetReader
from app.dispatch.fleet.index_sweep import IndexSweep
from app.dispatch.fleet.pool_control import PoolControl
from app.dispatch.media.expansions import Expansions
from app.dispatch.media.large_samples import LargeSamples
from app.dispatch.media.media_reader import MediaReader
from app.dispatch.media.media_store import MediaStore
from app.dispatch.models.adapter_table import AdapterTable
from app.dispatch.models.aliases import Aliases
from app.dispatch.models.models import Model, load_models
from app.dispatch.observing.loop_delay import observe_loop_delay
from app.dispatch.observing.recorder import Recorder
from app.dispatch.observing.request_lookup import RequestLookup
from app.dispatch.observing.timeline import Timelines
from app.dispatch.observing.traffic import TrafficCounter
from app.errors import StoreDown
from app.grammars.checker import GrammarChecker
from app.ids import HOME, CellId, PoolId, new_api_id
from app.keys import Keys
from app.media.limits import MediaLimits
from app.media.loader import MediaLoader
from app.planner.observed import Objective
from app.planner.rules import objectives_of
from app.pools.fetched_pools import fetched_pools
from app.pools.findings import Findings
from app.pools.pools_file import load_pools
from app.pools.schema import Pipeline, Pool
from app.running.ending import end_tasks
from app.settings import Settings
from app.store import Wire, clock
from app.store.wire_version import check, keep_noting, note
from app.telemetry import HELD, HELD_SAMPLES, IN_FLIGHT, logger
from app.tenants.admission import admitted
from app.tracing.tracer import Tracer, tracer_of_environment
from app.usage.outbox import UsageOutbox

T = TypeVar("T")

_SUBSCRIBED_S = 2.0
_TIMEOUT_S = 2.0  # of other cells' Redis: less than that of our own, without which there is nothing else to do
# Tokenising uses a core per thread: one core is left to the event loop.
_threads = ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) - 1), thread_name_prefix="tokenising")
_MOST_WAITING = 16  # threads that wait for processes

log = logger(__name__)


@dataclass(frozen=True)
class Deployment:
    """Settings, pools and models: all that is known without Redis."""

    settings: Settings
    pools: Mapping[PoolId, Pool]
    models: dict[str, Model]
    aliases: Aliases = field(default_factory=lambda: Aliases({}, {}), kw_only=True)
    media: MediaReader | None = field(default=None, kw_only=True)  # None: no request may have pictures
    grammars: GrammarChecker = field(default_factory=GrammarChecker, kw_only=True)
    waiting: TurnThreads = field(default_factory=lambda: TurnThreads(_MOST_WAITING, "waiting"), kw_only=True)
    pipelines: Mapping[str, Pipeline] = field(default_factory=dict, kw_only=True)
    objectives: Mapping[str, Objective] = field(default_factory=dict, kw_only=True)  # of models that are planned
    tracer: Tracer | None = field(default=None, kw_only=True)  # None: nothing is traced

    @classmethod
    def read(cls, settings: Settings) -> "Deployment":
        """Raises: SettingsError."""
        pools_file = fetched_pools(load_pools(settings.pools_file), settings, "text")
        for warning in Findings(settings.pools_file).warnings:
            log.warning("pool_key_without_effect", says=warning)
        models = load_models(pools_file)
        aliases = Aliases(pools_file.aliases, models, pools_file.pipelines)
        media = MediaReader(MediaLoader(MediaLimits.of(settings)), Storage(settings.files_url), settings.media_bytes)
        tracer = tracer_of_environment()
        return cls(
            settings,
            pools_file.pools,
            models,
            aliases=aliases,
            media=media,
            pipelines=pools_file.pipelines,
            objectives=objectives_of(pools_file),
            tracer=tracer,
        )

    async def look(self) -> None:
        """Reads anew the models and aliases that are only in Redis: without Redis there are none."""

    @property
    def longest_context(self) -> int:
        """Tokens, of any model."""
        return max((model.context_len for model in self.models.values()), default=0)

    async def off_loop(self, raw: bytes, work: Callable[[], T], *, compiles: bool = False, waits: bool = False) -> T:
        """The result of `work` on a request's body: in a thread if the body is long or `work` compiles something.

        `waits`: it waits for a process, as a chat template of the request's own does. Raises what `work` raises; and
        RateLimited, BudgetUsed, StoreDown, Saturated before work in a thread.
        """
        if len(raw) <= self.settings.tokenize_off_loop and not (compiles or waits):
            return work()
        await admitted()
        if waits:
            return await self.waiting.run(work)
        return await asyncio.get_running_loop().run_in_executor(_threads, copy_context().run, work)


@dataclass(frozen=True)
class Runtime(Deployment):
    """A running process that dispatches requests; tokens come to it by its `ApiId`."""

    keys: Keys
    redis: "Redis"
    wire: Wire
    fleet: FleetReader
    dispatcher: Dispatcher
    inbox: TokenInbox
    lookup: RequestLookup
    adapters: AdapterTable
    control: PoolControl
    cells: Cells

    async def look(self) -> None:
        with suppress(StoreDown):
            await self.adapters.refresh()
            await self.aliases.refresh(self.wire, self.keys)


def _media_store(settings: Settings, home: Cell) -> MediaStore:
    address = settings.address or address_towards(settings.redis_url)
    large = LargeSamples(address, settings.media_port, home.fleet.collects)
    HELD_SAMPLES.set_function(lambda: large.sizes.get("all", 0))
    return MediaStore(
        home.redis, home.keys, settings.patience_s, settings.media_held, settings.media_left_s, large=large
    )


@asynccontextmanager
async def running(deployment: Deployment, *, elsewhere: bool = False) -> AsyncIterator[Runtime]:
    """Starts also without Redis: then each request gets StoreDown.

    `elsewhere`: for live traffic, which may go to XYLEM_CELLS, is recorded when `xylem record` wants it, and counted
    when a planner does.

    Raises: WireMismatch.
    """
    settings, pools, api = deployment.settings, deployment.pools, new_api_id()
    home = Cell(HOME, settings, pools)
    others = [Cell(CellId(name), other, pools, _TIMEOUT_S) for name, other in settings.others() if elsewhere]
    keys, redis, wire, fleet = home.keys, home.redis, home.wire, home.fleet
    adapters = AdapterTable(wire, keys, deployment.models)
    control = PoolControl(redis, keys, fleet)
    timelines, expansions, usage = Timelines(), Expansions(redis, wire, keys, fleet), UsageOutbox(wire, keys)
    recorder, traffic = Recorder(wire, keys, api, timelines), TrafficCounter(wire, keys, api, deployment.objectives)
    dispatcher = Dispatcher(
        wire,
        keys,
        api,
        fleet,
        pools,
        retry_after_s=settings.retry_after_s,
        patience_s=settings.patience_s,
        max_migrations=settings.max_migrations,
        adapter=adapters.current,
        wake_pool=control.wake_soon,
        token_redis=home.token_redis,
        broker=home.broker,
        media=_media_store(settings, home),
        timelines=timelines,
        expansions=None if deployment.media is None else expansions,
        recorder=recorder if elsewhere else None,
        traffic=traffic if elsewhere else None,
        usage=usage if settings.records_usage else None,
        hook=None if settings.hook_url is None else ContentHook(settings),
    )
    inbox = TokenInbox(home.token_wire, keys, api, dispatcher.deliver, partial(dispatcher.worker_lost, died=False))
    watch = LivenessWatch(
        wire,
        keys,
        dispatcher,
        inbox,
        fleet,
        pools=pools,
        adapters=adapters,
        intervals=settings.intervals,
        broker=home.broker,
        counts=elsewhere,
    )
    cells = Cells(watch, dispatcher, pools, others, settings.cell_lost_s)
    lookup = RequestLookup(wire, redis, keys, api, timelines)

    def usable(name: str) -> bool:
        """Whether a model has a worker and nobody waits for one, or another cell has room."""
        model = deployment.models.get(name)
        if model is None:
            return False
        here = fleet.has_worker(model.pools) and not dispatcher.placer.has_line(model.pools)
        return here or (model.adapter is None and cells.load(model.pools).room > 0)

    aliases = deployment.aliases.with_usable(usable)
    media = None if deployment.media is None else deployment.media.with_redis(FileStore(wire, keys), expansions)
    IN_FLIGHT.set_function(lambda: len(dispatcher.in_flight))
    HELD.set_function(lambda: dispatcher.placer.held)
    sweep = IndexSweep(wire, keys, api, fleet, list(pools))
    optional: list[Runs | None] = [dispatcher.media, dispatcher.usage, dispatcher.recorder, dispatcher.traffic]
    parts: list[Runs] = [inbox, watch, lookup, sweep, dispatcher.placer, *cells.parts]
    parts += [part for part in optional if part is not None]
    background = [asyncio.create_task(part.run()) for part in parts]
    background.append(asyncio.create_task(keep_noting(wire, settings)))
    background.append(asyncio.create_task(aliases.run(wire, keys)))
    background.append(asyncio.create_task(observe_loop_delay()))
    try:
        with suppress(TimeoutError, StoreDown):
            async with asyncio.timeout(_SUBSCRIBED_S):
                await inbox.subscribed.wait()
                await clock.ask(wire, keys)
                (strangers,) = await wire.execute([note(settings)])
                check(strangers)
                await adapters.refresh()
        yield Runtime(
            settings,
            pools,
            deployment.models,
            keys=keys,
            redis=redis,
            wire=wire,
            fleet=fleet,
            dispatcher=dispatcher,
            inbox=inbox,
            lookup=lookup,
            adapters=adapters,
            control=control,
            cells=cells,
            aliases=aliases,
            media=media,
            grammars=deployment.grammars,
            pipelines=deployment.pipelines,
            tracer=deployment.tracer,
        )
    finally:
        if media is not None:
            await media.close()
        await asyncio.to_thread(deployment.grammars.close)
        if dispatcher.hook is not None:
            await dispatcher.hook.close()
        await control.close()
        await end_tasks(background)
        if dispatcher.usage is not None:
            await dispatcher.usage.close()
        if dispatcher.media is not None:
            await dispatcher.media.close()
        if deployment.tracer is not None:
            await asyncio.to_thread(deployment.tracer.close)
        await asyncio.gather(*(cell.close(api) for cell in (home, *others)))
