"""What of an engine's KV the prefix index has: of each rank its cache, and the tiers behind it."""

import socket
from collections.abc import Awaitable, Callable
from itertools import zip_longest

from msgspec import Struct

from app.engines.base import EngineInfo
from app.ids import PoolId
from app.kv.ledger import Ledger
from app.kv.prefix_index import KvIndex
from app.kv.store_index import StoreIndex
from app.pools import Pool
from app.runner.runner import Runner
from workers.engine.kv_event_feed import KvEventFeed


class KvIndices(Struct, frozen=True):
    """`caches` and `hosts`: of each rank, in order; none without KV events, or tiers."""

    caches: list[KvIndex] = []
    hosts: list[KvIndex] = []
    store: StoreIndex | None = None
    feeds: list[KvEventFeed] = []


def kv_indices(
    runner: Runner, name: PoolId, pool: Pool, info: EngineInfo, renumbered: Callable[[], Awaitable[None]]
) -> KvIndices:
    """`renumbered` tells API replicas that a number has changed."""
    wire, keys, events = runner.index, runner.keys, runner.engine.kv_events()
    sources = [source for _rank, source in sorted(events.items())]
    caches = [KvIndex(wire, keys, keys.cached(name), renumbered) for _ in sources]
    hosts, store = list[KvIndex](), None
    if info.tier_block_bytes:
        hosts = [KvIndex(wire, keys, keys.tiered(name), renumbered) for _ in sources]
        if (address := _store_name(pool, info)) is not None:
            store = StoreIndex(wire, keys, name, address, renumbered)
    feeds = [
        KvEventFeed(source, Ledger(pool.block_size, source.own_keys, source.pictures), cache, host=host, store=store)
        for source, cache, host in zip_longest(sources, caches, hosts)
    ]
    return KvIndices(caches, hosts, store, feeds)


def _store_name(pool: Pool, info: EngineInfo) -> str | None:
    """The same for all workers that read each other's blocks."""
    if pool.tiers is None or pool.tiers.disk is None:
        return None
    where = "" if pool.tiers.is_shared else socket.gethostname()
    return f"{pool.tiers.disk} {where} {pool.engine} {info.version}"
