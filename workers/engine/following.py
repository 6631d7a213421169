"""A worker whose engine is led by a process on another host: it computes with that one, and takes no task itself."""

import asyncio
import os
from concurrent.futures import Future

from celery.worker import state

from app.engines.base import Follower
from app.ids import PoolId
from app.kv.prefix_index import KvIndex
from app.pools.schema import Pool
from app.runner.engine_factory import create_follower
from app.runner.runner import end_process
from app.running.loop_thread import LoopThread
from app.running.loops import keep
from app.settings import Settings
from app.store import Wire, async_client
from app.telemetry import logger
from workers.engine.exit_guard import ExitGuard
from workers.engine.group_adapters import FollowerAdapters
from workers.engine.group_member import GroupMember
from workers.engine.kv_event_feed import KvEventFeed
from workers.engine.kv_indices import ledger_of

log = logger(__name__)
_LOOK_S = 0.1


def told_to_end() -> bool:
    """Whether a signal has told this worker to end. Celery itself looks only when it takes tasks."""
    return any(
        exit_code is not None and exit_code is not False for exit_code in (state.should_stop, state.should_terminate)
    )


def follow(settings: Settings, name: PoolId, pool: Pool, member: GroupMember, guard: ExitGuard) -> int:
    """Follows the leader until the group ends; returns the exit status. Blocks. Raises: SettingsError."""
    follower = create_follower(pool, member.node)
    thread = LoopThread("engine")
    loading = asyncio.run_coroutine_threadsafe(follower.start(_died), thread.loop)
    feeding: Future[None] | None = None
    adapters = asyncio.run_coroutine_threadsafe(FollowerAdapters(member, settings).run(), thread.loop)
    while not member.over.wait(_LOOK_S):
        if told_to_end():
            if state.should_terminate or not member.leader.ready:  # it can't drain
                os._exit(0)
            member.tell(leaving=True)  # its leader drains, and ends
        if feeding is None and loading.done():
            loading.result()
            if member.leader.ready:
                guard.loaded()
                feeding = asyncio.run_coroutine_threadsafe(_feed(settings, name, pool, member, follower), thread.loop)
                log.info("following", pool=name, leader=member.leader.address, rank=member.node.rank)
        if feeding is not None and feeding.done():
            feeding.result()
    if feeding is not None:
        feeding.cancel()
    adapters.cancel()
    thread.call(follower.close())
    log.info("group_over", pool=name)
    return 0 if told_to_end() else 1  # whoever restarts workers restarts this one


def _died() -> None:
    log.critical("engine_died", reason="this host's part of the engine has ended")
    os._exit(1)


async def _feed(settings: Settings, name: PoolId, pool: Pool, member: GroupMember, follower: Follower) -> None:
    """Writes the KV events of this host's data-parallel ranks to the prefix index. Until cancelled."""
    sources = [source for _rank, source in sorted(follower.kv_events().items())]
    if not sources or member.leader.unindexed:
        return
    client = async_client(settings.index_url or settings.redis_url, settings.keys.home)
    wire = Wire(client)

    async def renumbered() -> None:
        member.tell(caches=[cache.number for cache in caches])

    caches = [KvIndex(wire, settings.keys, settings.keys.cached(name), renumbered) for _ in sources]
    feeds = [
        KvEventFeed(source, ledger_of(source, member.leader.block_size or pool.block_size, member.leader.groups), cache)
        for source, cache in zip(sources, caches, strict=True)
    ]
    tasks = [asyncio.create_task(feed.run()) for feed in feeds]
    for task in tasks:
        task.add_done_callback(end_process)
    try:
        await _keep_weights(member, feeds)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        wire.close()
        await client.aclose()


async def _keep_weights(member: GroupMember, feeds: list[KvEventFeed]) -> None:
    """Clears the index when the leader's weights change: nobody is to find blocks that other weights computed."""
    version = ""

    async def look() -> None:
        nonlocal version
        if (weights := member.leader.weights) != version:
            await asyncio.gather(*(feed.forget(feed.clears, weights) for feed in feeds))
            version = weights

    await keep("weights_not_followed", look, _LOOK_S)
