"""Keeps the engine's LoRA adapters as the deployment wants them. On the engine's loop; files are moved in threads."""

import asyncio
import time
from functools import partial
from typing import cast

from msgspec.structs import replace

from app.adapters.assignment import Member, assign, is_for
from app.adapters.fetch import check_rank, fetch
from app.adapters.local_store import HeldAdapter, LocalStore
from app.adapters.registry import decoded
from app.adapters.slots import next_step
from app.engines.base import Adapters, EngineInfo
from app.errors import EngineDead, XylemError
from app.ids import PoolId
from app.messages.wanted import Adapter
from app.pools.schema import Pool
from app.runner.runner import Runner
from app.running.loops import keep, sooner
from app.telemetry import logger
from workers.engine.group_adapters import LeaderAdapters
from workers.engine.group_member import GroupMember
from workers.engine.lease import LeaseKeeper
from workers.engine.pool_leases import pool_leases

log = logger(__name__)

_EVERY_S = 1.0  # who waits for something sends a command
_ASKED_S = 10.0  # for so long requests are taken to wait that somebody asked for
_RETRY_S, _RETRY_MOST_S = 30.0, 600.0  # until what failed is tried again; twice as long each time
_TOLD = 300  # characters of a reason in the lease


class AdapterKeeper:
    """Fetches, loads, and only then has the lease say so; what is not wanted any more goes the other way round."""

    def __init__(
        self,
        runner: Runner,
        lease: LeaseKeeper,
        engine: Adapters,
        pool_id: PoolId,
        pool: Pool,
        info: EngineInfo,
        changing: asyncio.Lock,
        group: GroupMember | None = None,
    ) -> None:
        """`changing`: held while the engine's state changes. What sleeps has no memory for weights.

        `group`: of an engine that spans several hosts.
        """
        self._runner, self._lease, self._engine, self._info = runner, lease, engine, info
        self._changing = changing
        self._pool_id, self._pool, self._in_use = pool_id, pool, runner.adapters
        settings = runner.settings
        self._store = LocalStore(settings.lora_store_path, settings.lora_store_bytes)
        self._group = None if group is None else LeaderAdapters(group, settings)
        self._version: bytes | None = None
        self._current: dict[str, Adapter] = {}  # for this pool, by `Adapter.versioned` as all here
        self._held: dict[str, HeldAdapter] = {}  # what the engine has
        self._asked: dict[str, float] = {}  # when requests last waited for it
        self._retry: dict[str, tuple[float, float]] = {}  # when what failed is tried again, and the pause before that
        self._loading: asyncio.Task[None] | None = None
        self._soon = asyncio.Event()
        self._in_use.on_idle = self._idle

    def look(self, name: str = "") -> None:
        """The wanted adapters have changed; or requests wait for one of them."""
        if name:
            self._asked[name] = time.monotonic()
        self._soon.set()

    def _idle(self) -> None:
        """The last request of one has ended: it may go, if that is waited for."""
        if self._asked or self._held.keys() - set(self._in_use.open):
            self._soon.set()

    async def run(self) -> None:
        """Loads and removes adapters as needed, until cancelled. Raises: EngineDead."""
        try:
            await keep("adapters_not_read", self._look, sooner(self._soon, _EVERY_S), ends=EngineDead)
        finally:
            if self._loading is not None:
                self._loading.cancel()
                await asyncio.gather(self._loading, return_exceptions=True)
            for hold in self._held.values():  # the engine ends too
                hold.release()

    async def _look(self) -> None:
        await self._read()
        await self._close([name for name in self._in_use.open if name not in self._current])
        if self._loading is not None:
            if not self._loading.done():
                return
            loading, self._loading = self._loading, None
            loading.result()  # EngineDead
        if self._stands_still or not (self._current or self._held):
            return
        now = time.monotonic()
        self._asked = {name: at for name, at in self._asked.items() if now - at < _ASKED_S}
        resting = {name for name, (at, _) in self._retry.items() if now < at}
        wanted_names = [name for name in await self._wanted(resting) if name not in resting]
        step = next_step(
            self._info.max_adapters,
            {name: self._in_use.use(name) for name in self._held},
            self._current.keys(),
            wanted_names,
            [name for name in self._asked if name not in resting],
            now=time.monotonic(),
        )
        await self._close(step.remove)  # at once, before a request can begin with one of them
        for name in step.remove:
            await self._remove(name)
        if step.load is not None and step.load in self._current:
            self._loading = asyncio.create_task(self._load(self._current[step.load]))
            self._loading.add_done_callback(lambda _: self._soon.set())

    async def _read(self) -> None:
        redis, (adapters, version) = self._runner.redis, self._runner.keys.loras()
        now = cast(bytes | None, await redis.get(version))
        if now == self._version:
            return
        all_adapters = decoded(cast(dict[bytes, bytes], await redis.hgetall(adapters)))
        ours = [a for a in all_adapters.values() if is_for(a, self._pool_id, self._pool.model)]
        self._current, self._version = {a.versioned: a for a in ours}, now
        self._retry = {name: when for name, when in self._retry.items() if name in self._current}
        self._in_use.failed = {name: why for name, why in self._in_use.failed.items() if name in self._current}

    async def _wanted(self, resting: set[str]) -> list[str]:
        me, leases = self._runner.worker, await pool_leases(self._runner, self._pool_id)
        members = [Member.of(lease) for lease in leases if not lease.draining]
        # What failed here a while ago is tried again, although the others count on it no longer.
        members = [replace(m, failed=frozenset(resting)) if m.id == me else m for m in members]
        return assign(self._current.values(), members).get(me, [])

    async def _close(self, names: list[str]) -> None:
        """No request begins with them from now on; and nobody sends one, when this returns."""
        names = [name for name in names if name in self._in_use.open]
        for name in names:
            self._in_use.refuse(name)
        if names:
            await self._lease.tell()

    @property
    def _stands_still(self) -> bool:
        """The engine sleeps, or is about to, or gets other weights: what is to be loaded or removed waits."""
        return self._changing.locked() or bool(self._lease.state.asleep)

    async def _remove(self, name: str) -> None:
        """Closed, and no request has it."""
        try:
            async with self._changing:
                if self._lease.state.asleep:
                    return
                await self._engine.remove_adapter(name)
        except EngineDead:
            raise
        except Exception:  # it keeps its slot, and its files, and is tried again
            log.exception("adapter_not_removed", adapter=name)
            return
        self._held.pop(name).release()
        if self._group is not None:
            self._group.drop(name)
        self._in_use.forget(name)
        log.info("adapter_removed", adapter=name)

    async def _load(self, adapter: Adapter) -> None:
        name, began = adapter.versioned, time.monotonic()
        try:
            hold = await self._hold(adapter)
            try:
                if self._group is not None:
                    await self._group.spread(adapter)
                async with self._changing:
                    if not self._lease.state.asleep:
                        await self._engine.add_adapter(name, hold.path)
                        self._held[name] = hold
            finally:
                if name not in self._held:
                    hold.release()
                    if self._group is not None:
                        self._group.drop(name)
        except EngineDead:
            raise
        except XylemError as exc:
            self._failed(name, exc.message)
        except Exception as exc:  # whatever an adapter's files do, the model goes on
            log.exception("adapter_broke", adapter=name)
            self._failed(name, f"It could not be loaded ({type(exc).__name__}).")
        else:
            if name not in self._held:
                return
            took = time.monotonic() - began
            self._in_use.load_s = took if not self._in_use.load_s else (self._in_use.load_s + took) / 2
            self._asked.pop(name, None)
            self._retry.pop(name, None)
            self._in_use.failed.pop(name, None)
            if name in self._current:
                self._in_use.admit(name)
            log.info("adapter_loaded", adapter=name, seconds=round(took, 3))
        await self._lease.tell()

    async def _hold(self, adapter: Adapter) -> HeldAdapter:
        """Raises: AdapterFailed."""
        settings = self._runner.settings
        get = partial(fetch, adapter, settings=settings)
        holding = asyncio.ensure_future(asyncio.to_thread(self._store.hold, adapter.versioned, get))
        try:
            hold = await asyncio.shield(holding)
        except asyncio.CancelledError:  # the thread goes on
            holding.add_done_callback(_let_go)
            raise
        try:
            await asyncio.to_thread(check_rank, hold.path, self._info.max_adapter_rank)
        except BaseException:
            hold.release()
            raise
        return hold

    def _failed(self, name: str, reason: str) -> None:
        log.error("adapter_failed", adapter=name, reason=reason)
        _, pause = self._retry.get(name, (0.0, _RETRY_S / 2))
        pause = min(2 * pause, _RETRY_MOST_S)
        self._retry[name] = time.monotonic() + pause, pause
        self._asked.pop(name, None)
        if name in self._current:
            self._in_use.failed[name] = reason[:_TOLD]


def _let_go(holding: asyncio.Future[HeldAdapter]) -> None:
    if holding.exception() is None:
        holding.result().release()


def keeper_of(
    runner: Runner,
    lease: LeaseKeeper,
    pool_id: PoolId,
    pool: Pool,
    info: EngineInfo,
    changing: asyncio.Lock,
    group: GroupMember | None = None,
) -> AdapterKeeper | None:
    """None for an engine that takes no adapters."""
    engine = runner.engine
    if not isinstance(engine, Adapters) or not info.max_adapters:
        return None
    return AdapterKeeper(runner, lease, engine, pool_id, pool, info=info, changing=changing, group=group)
