"""The parts of an engine's KV that the prefix index has: each rank's cache, and the tiers behind it."""

import math
import socket
from collections.abc import Awaitable, Callable, Sequence
from itertools import zip_longest

from msgspec import Struct

from app.engines.base import EngineInfo, KvEventSource
from app.ids import PoolId
from app.kv.groups import grid, names_all, naming
from app.kv.hybrid_ledger import HybridLedger
from app.kv.ledger import Ledger
from app.kv.prefix_index import KvIndex
from app.kv.store_index import StoreIndex
from app.kv_store.block_store import open_store
from app.messages.lease import CacheGroup
from app.pools.schema import Pool, Tiers
from app.runner.runner import Runner
from app.telemetry import logger
from workers.engine.erased_salts import ErasedSalts
from workers.engine.kv_event_feed import KvEventFeed
from workers.engine.store_cleaner import StoreCleaner

log = logger(__name__)

# Blocks of a rank's own connector in the index: some, such as Mooncake's, never say what they drop.
_MOST_UNBOUNDED = 200_000


class KvIndices(Struct, frozen=True):
    """`caches`, `beginnings` and `hosts`: of each rank, in order; none without KV events, kinds of layers, or tiers."""

    caches: list[KvIndex] = []
    beginnings: list[KvIndex] = []
    hosts: list[KvIndex] = []
    store: StoreIndex | None = None  # of the first rank; those of the others have the same number
    feeds: list[KvEventFeed] = []
    cleaner: StoreCleaner | None = None  # of the store


def kv_indices(
    runner: Runner, name: PoolId, pool: Pool, info: EngineInfo, on_new_number: Callable[[], Awaitable[None]]
) -> KvIndices:
    """`on_new_number` tells API replicas that a number has changed."""
    wire, keys = runner.index, runner.keys
    if why := why_unindexed(info):
        log.warning("kv_events_not_placed", pool=name, reason=why, effect="routing by load only")
    events = {} if why else runner.engine.kv_events()
    sources = [source for _rank, source in sorted(events.items())]
    caches = [KvIndex(wire, keys, keys.cached(name), on_new_number) for _ in sources]
    hybrid = sources if info.groups and naming(info.groups).sees == "all" else []
    beginnings = [KvIndex(wire, keys, keys.cached(name), on_new_number) for _ in hybrid]
    hosts, stores, cleaner = list[KvIndex](), list[StoreIndex](), None
    if info.tier_block_bytes and sources:
        hosts = [KvIndex(wire, keys, keys.tiered(name), on_new_number) for _ in sources]
        if pool.tiers is not None and pool.tiers.disk is not None:
            address = _store_name(pool, pool.tiers, info)
            stores = [StoreIndex(wire, keys, name, address, on_new_number) for _ in sources]
            size = math.inf if pool.tiers.disk_gb is None else pool.tiers.disk_gb * 1e9
            place, every_s = open_store(pool.tiers.disk), pool.tiers.disk_look_s
            erased_salts = ErasedSalts(runner.redis, keys, name)
            cleaner = StoreCleaner(
                place,
                size,
                stores[0],
                wire,
                keys.cleaning(name),
                worker=runner.worker,
                every_s=every_s,
                erased_salts=erased_salts,
            )
    most = math.inf if pool.tiers is not None else _MOST_UNBOUNDED
    feeds = [
        KvEventFeed(
            source,
            ledger_of(
                source,
                info.block_size,
                info.groups,
                tells_beginnings=beginning is not None,
                has_store=store is not None,
                most_in_host=most,
            ),
            cache,
            beginnings=beginning,
            host=host,
            store=store,
        )
        for source, cache, beginning, host, store in zip_longest(sources, caches, beginnings, hosts, stores)
    ]
    return KvIndices(caches, beginnings, hosts, store=stores[0] if stores else None, feeds=feeds, cleaner=cleaner)


def why_unindexed(info: EngineInfo) -> str:
    """The reason why its KV events can't be placed; "": they can."""
    if info.groups and grid(info.groups) is None:
        return "the KV blocks of its layers end at different tokens"
    if info.groups and not names_all(info.groups):
        return "none of its layers sees all tokens, and which blocks of windows or states it keeps it doesn't say"
    return info.unindexed


def ledger_of(
    source: KvEventSource,
    block_size: int,
    groups: Sequence[CacheGroup],
    *,
    tells_beginnings: bool = False,
    has_store: bool = False,
    most_in_host: float = math.inf,
) -> Ledger | HybridLedger:
    """The ledger of these KV events, for groups that `grid` knows.

    The arguments are as `Ledger`, `HybridLedger` and `EngineInfo` have them.
    """
    if groups:
        return HybridLedger(groups, source.own_keys, source.pictures, tells_beginnings=tells_beginnings)
    return Ledger(block_size, source.own_keys, source.pictures, has_store=has_store, most_in_host=most_in_host)


def _store_name(pool: Pool, tiers: Tiers, info: EngineInfo) -> str:
    """The same for all workers that read each other's blocks."""
    where = "" if tiers.is_shared else socket.gethostname()
    return f"{tiers.disk} {where} {pool.engine} {info.version}"
