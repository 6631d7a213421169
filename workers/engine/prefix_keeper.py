"""Keeps pinned prefixes in the engine's cache, by computing them again and again. On the engine's loop.

Engines have no common way to keep a block. But what a prompt has just used is evicted last, and one that is cached
costs a token. So each is asked for every few seconds: what was evicted is then loaded from a tier, or computed.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, nullcontext
from itertools import count
from typing import cast

from app.engines.base import Engine, EngineInfo, GenerateRequest, Prober
from app.errors import XylemError
from app.ids import PoolId, PrefixId, RunId
from app.kv.blocks import HASH_BYTES, point_hashes
from app.kv.groups import grid_of
from app.messages.job import ASIDE_PRIORITY, Sampling
from app.messages.wanted import Prefix, decode_prefix
from app.pools.schema import Pool
from app.routing.prefixes import kept_by, parts, prompt, version_of
from app.runner.runner import Runner
from app.running.loops import keep, sooner
from app.store import clock
from app.telemetry import logger
from workers.engine.lease import LeaseKeeper
from workers.engine.pool_leases import pool_leases
from workers.engine.store_cleaner import StoreCleaner

log = logger(__name__)

_EVERY_S = 10.0
_LAST = 2 * ASIDE_PRIORITY  # behind aside requests, too
_SAMPLING = Sampling(max_tokens=1, temperature=0.0)


class PrefixKeeper:
    """One prompt at a time. Whatever goes wrong with it is tried again later, and no request's business."""

    def __init__(self, runner: Runner, lease: LeaseKeeper, pool_id: PoolId, cleaner: StoreCleaner | None) -> None:
        """`cleaner`: of the pool's store."""
        self._runner, self._lease, self._pool_id, self._grid = runner, lease, pool_id, grid_of(lease.worker)
        self._known: dict[PrefixId, Prefix] = {}
        self._computed: set[PrefixId] = set()
        self._failed: set[PrefixId] = set()
        self._running: asyncio.Task[bool] | None = None  # on the engine
        self._rests = 0  # how many want that there is none
        self._numbers = count()  # of prompts
        self._soon = asyncio.Event()
        self._cleaner = cleaner
        if cleaner is not None:
            cleaner.unwanted = self._dropped_blocks

    def look(self) -> None:
        """The prefixes have changed."""
        self._soon.set()

    async def run(self) -> None:
        """Keeps the pool's prefixes in the cache, until cancelled."""
        await keep("prefixes_not_kept", self._look, sooner(self._soon, _EVERY_S))

    @asynccontextmanager
    async def resting(self) -> AsyncIterator[None]:
        """The engine has no prompt of a prefix meanwhile; afterwards it has them all again."""
        self._rests += 1
        try:
            if (running := self._running) is not None:
                running.cancel()
                await asyncio.wait([running])
            yield
        finally:
            self._rests -= 1
            self._soon.set()

    async def _look(self) -> None:
        await self._read()
        live = self._now(dropped=False)
        if not live or self._stands_still:
            return
        for prefix in kept_by(self._runner.worker, live, await pool_leases(self._runner, self._pool_id)):
            if not (prefix.once and prefix.id in self._computed):
                await self._keep(prefix)

    async def _read(self) -> None:
        """Reads new prefixes only: they are long, and don't change."""
        redis, key = self._runner.redis, self._runner.keys.prefixes(self._pool_id)
        ids = {PrefixId(field.decode()) for field in cast(list[bytes], await redis.hkeys(key))}
        new = [*(ids - self._known.keys())]
        raws = cast(list[bytes | None], await redis.hmget(key, new)) if new else []
        new_prefixes = [decode_prefix(raw) for raw in raws if raw is not None]
        if self._cleaner is not None and any(prefix.dropped for prefix in new_prefixes):
            self._cleaner.soon.set()
        prefixes = [*(prefix for prefix in self._known.values() if prefix.id in ids), *new_prefixes]
        self._known = {prefix.id: prefix for prefix in prefixes}
        self._computed &= ids
        self._failed &= ids

    def _now(self, *, dropped: bool) -> list[Prefix]:
        now = clock.now()
        return [prefix for prefix in self._known.values() if prefix.until > now and prefix.dropped == dropped]

    async def _keep(self, prefix: Prefix) -> None:
        """Computes the prefix on each data-parallel rank."""
        adapter = self._version(prefix)
        if (prefix.adapter is not None and adapter is None) or len(prefix.tokens) < self._grid.step:
            return
        try:
            for rank in range(len(self._runner.gates)):
                for tokens in parts(prompt(prefix, self._grid.step), self._grid.step):
                    run = RunId(f"prefix-{self._runner.worker}.{next(self._numbers)}")
                    request = GenerateRequest(
                        run, tokens, _SAMPLING, _LAST, rank, cache_salt=prefix.cache_salt, adapter=adapter
                    )
                    if not await self._compute(request):
                        return
        except XylemError as exc:  # also when the engine has died: the next request ends the worker
            if prefix.id not in self._failed:
                log.error("prefix_not_computed", prefix=prefix.id, code=exc.code)
            self._failed.add(prefix.id)
            return
        self._failed.discard(prefix.id)
        if prefix.id not in self._computed:
            log.info("prefix_computed", prefix=prefix.id, tokens=len(prefix.tokens))
        self._computed.add(prefix.id)

    async def _compute(self, request: GenerateRequest) -> bool:
        """Whether it was computed: not if the engine has to stand still. Raises: XylemError."""
        if self._stands_still:
            return False
        running = self._running = asyncio.create_task(self._answer(request))
        try:
            await asyncio.wait([running])
        finally:
            running.cancel()  # if this is cancelled itself
            self._running = None
        return not running.cancelled() and running.result()

    async def _answer(self, request: GenerateRequest) -> bool:
        """Whether there was one. Raises: XylemError."""
        with self._has(request.adapter):
            async with aclosing(self._runner.engine.generate(request)) as steps:
                return bool([token async for step in steps for token in step.tokens])

    def _has(self, adapter: str | None) -> AbstractContextManager[None]:
        return nullcontext() if adapter is None else self._runner.adapters.used(adapter)

    @property
    def _stands_still(self) -> bool:
        """Whether the worker sleeps, is paused or drains, or something is about to change."""
        return bool(self._rests or self._runner.closed or self._lease.stays_out)

    def _version(self, prefix: Prefix) -> str | None:
        return None if prefix.adapter is None else version_of(prefix.adapter, self._runner.adapters.open)

    def _dropped_blocks(self) -> frozenset[bytes]:
        """Our hashes of the blocks that dropped prefixes have, and no other."""
        dropped_blocks, live_blocks = (
            {block for prefix in self._now(dropped=which) for block in self._blocks(prefix)} for which in (True, False)
        )
        return frozenset(dropped_blocks - live_blocks)

    def _blocks(self, prefix: Prefix) -> Iterator[bytes]:
        adapter = self._version(prefix)
        if prefix.adapter is not None and adapter is None:
            return
        tokens = prompt(prefix, self._grid.step)
        hashes = point_hashes(tokens, self._grid, prefix.cache_salt, adapter, self._runner.weights)
        yield from (hashes[i : i + HASH_BYTES] for i in range(0, len(hashes), HASH_BYTES))


def keeps_prefixes(engine: Engine, pool: Pool, info: EngineInfo) -> bool:
    """Whether it computes prompts alone. A prefill engine that needs another one doesn't."""
    alone = pool.role == "both" or (pool.role == "prefill" and not isinstance(engine, Prober))
    return pool.task == "generate" and alone and info.computes
