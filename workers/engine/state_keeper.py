"""Puts the engine to sleep, pauses it, changes its weights: by command, and as the pool's state says at the start.

Always in this order: out of routing, then its requests, then the engine. It comes back after one token. On the
engine's loop.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar, cast

from msgspec.structs import replace

from app.engines.base import Elastic, ExpertRecorder, Pauser, Profiler, Sleeper, Weights
from app.errors import EngineDead, EngineFailed, RequestError, XylemError
from app.ids import PlaceId, PoolId, place_id
from app.messages.commands import Pause, Profile, RecordExperts, Resume, Scale, SetWeights, Sleep, StateCommand, Wake
from app.messages.kinds import PauseMode
from app.messages.lease import EngineState
from app.messages.wanted import PoolState, WeightsSource, decode_pool_state
from app.pools.schema import Pool
from app.routing.pool_state import allowed, sleeps
from app.runner.runner import Runner
from app.store.scripts import FORGET_LOADS
from app.telemetry import logger
from workers.engine.kv_event_feed import KvEventFeed
from workers.engine.lease import LeaseKeeper, forget_guesses
from workers.engine.pool_leases import pool_leases
from workers.engine.presence import Presence

log = logger(__name__)
T = TypeVar("T")


class StateKeeper:
    """One change at a time."""

    def __init__(
        self, runner: Runner, lease: LeaseKeeper, pool_id: PoolId, pool: Pool, feeds: Sequence[KvEventFeed]
    ) -> None:
        self._runner, self._pool_id, self._pool, self._feeds = runner, pool_id, pool, feeds
        self.presence = Presence(runner, lease, pool)
        self._adopted = PoolState()
        self._source: WeightsSource | None = None  # of the present weights
        self._dropped = False  # a sleep has dropped the weights, and they were not loaded since
        self._awake: set[str] = set()  # of a sleeping engine, the tags that have been woken
        self.changing = asyncio.Lock()  # held while one goes on

    async def execute(self, command: StateCommand) -> None:
        """Raises: XylemError when the engine can't, or has failed."""
        async with self.changing:
            try:
                await self._execute(command)
            except EngineDead as exc:
                self.presence.end(exc.message)
                raise

    async def adopt(self) -> None:
        """Takes over the state of its pool: before the worker is registered, and after.

        Whoever changes the state between the two commands the registered workers only. Raises: XylemError, RedisError.
        """
        async with self.changing:
            pool_state = await self._wanted()
            if pool_state != self._adopted:
                await self._take_over(pool_state)
                self._adopted = pool_state

    async def _execute(self, command: StateCommand) -> None:
        match command:
            case Sleep():
                await self._sleep(command.level, command.mode)
            case Wake():
                await self._wake(command.tags)
            case Pause():
                await self._pause(command.mode)
            case Resume():
                await self._resume()
            case SetWeights():
                await self._set_weights(command.version, command.source, command.mode)
            case Profile():
                profiler = self._able(Profiler, "be profiled")  # type: ignore[type-abstract]
                await (profiler.start_profile(command.name) if command.on else profiler.stop_profile())
            case RecordExperts():
                recorder = self._able(ExpertRecorder, "record experts")  # type: ignore[type-abstract]
                await recorder.record_experts(command.action)
            case Scale():
                await self._scale(command.ranks)

    async def _take_over(self, target: PoolState) -> None:
        if target.weights != self._runner.weights:
            if _is_sent(target.source):
                log.warning("weights_awaited", version=target.weights, reason="they came through a transfer group")
                self.presence.awaits_weights = True
                await self.presence.come_back(self._state)
            else:
                await self._set_weights(target.weights, target.source, "abort")
        if target.paused and not self._state.asleep:
            await self._pause(target.paused)
        elif self._state.paused and not target.paused:
            await self._resume()
        if not target.sleep and self._state.asleep:
            await self._wake(())
        elif target.sleep and sleeps(await self._awake_others(), target.keep_awake):
            await self._sleep(target.sleep, "abort")
            if target.tags:
                await self._wake(target.tags)

    # One change each.

    async def _sleep(self, level: int, mode: PauseMode) -> None:
        sleeper = self._able(Sleeper, "sleep")  # type: ignore[type-abstract]
        if self._state.asleep:
            return
        async with self.presence.leaving(mode):
            await self.presence.lends_nothing()
            await sleeper.sleep(level, mode)
        self._awake, self._dropped = set(), level > 1
        await self.presence.come_back(replace(self._state, asleep=level))

    async def _wake(self, tags: Sequence[str]) -> None:
        sleeper, state = self._able(Sleeper, "sleep"), self._state  # type: ignore[type-abstract]
        if not state.asleep:
            return
        await self.presence.tell(replace(state, changing=True))
        try:
            awake = await sleeper.wake(tags)
            self._awake |= set(tags or ("weights",))
            if awake:
                await self._go_on()
                state = replace(state, asleep=0)
        finally:
            await self.presence.come_back(state)

    async def _go_on(self) -> None:
        """Goes on after a sleep. Raises: XylemError."""
        pauser = self._able(Pauser, "pause")  # type: ignore[type-abstract]
        await self._refresh_weights(pauser)
        if self._state.paused:
            await pauser.pause("keep")
        else:
            await pauser.resume()
            await self.presence.prove()

    async def _refresh_weights(self, pauser: Pauser) -> None:
        """Weights that the sleep has dropped, or that the pool has got meanwhile. Raises: XylemError."""
        pool_state = await self._wanted()
        if pool_state.weights == self._runner.weights and not self._dropped:
            return
        await pauser.pause("keep")
        if _is_sent(pool_state.source):
            raise EngineFailed("Its weights come through a transfer group, and have to be sent again.")
        await self._weights(pool_state.source).update_weights(pool_state.weights, pool_state.source)
        await self._took(pool_state.weights, pool_state.source)

    async def _pause(self, mode: PauseMode) -> None:
        pauser = self._able(Pauser, "pause")  # type: ignore[type-abstract]
        if self._state.asleep:
            raise RequestError("It sleeps.")
        if self._state.paused:
            return
        async with self.presence.leaving(mode):
            await pauser.pause(mode)
        await self.presence.come_back(replace(self._state, paused=mode))

    async def _resume(self) -> None:
        pauser = self._able(Pauser, "pause")  # type: ignore[type-abstract]
        if not self._state.paused:
            return
        if not self._state.asleep:
            await pauser.resume()
        await self.presence.come_back(replace(self._state, paused=None))

    async def _scale(self, ranks: int) -> None:
        elastic = self._able(Elastic, "change its ranks")  # type: ignore[type-abstract]
        if self._state.asleep or self._state.paused:
            raise RequestError("It sleeps, or is paused.")
        if ranks == len(self._places):
            return
        async with self.presence.leaving("wait"):
            await self.presence.lends_nothing()
            runner, before = self._runner, self._places
            info = await elastic.scale(ranks)
            self.presence.take(info)
            removed_places = [place for place in before if place not in self._places]
            if removed_places:
                await cast(
                    Awaitable[str],
                    runner.redis.eval(FORGET_LOADS, 1, runner.keys.loads(self._pool_id), *removed_places),
                )
            await self.presence.prove()
        await self.presence.come_back(self._state)

    async def _set_weights(self, version: str, source: WeightsSource | None, mode: PauseMode) -> None:
        engine, pauser = self._weights(source), self._able(Pauser, "pause")  # type: ignore[type-abstract]
        if version == self._runner.weights:
            return
        if self._state.asleep and "weights" not in self._awake:
            if _is_sent(source):
                raise RequestError("It sleeps: wake its weights first, with tags=['weights'].")
            return  # it takes them when it wakes
        if self._state.paused or self._state.asleep:
            await self._load(engine, version, source)
            await self.presence.come_back(self._state)
            return
        async with self.presence.leaving(mode):
            await self.presence.lends_nothing()
            await pauser.pause(mode)
            await self._load(engine, version, source)
            await pauser.resume()
        try:
            await self.presence.prove()
        except EngineFailed as exc:
            self.presence.end(exc.message)
            raise
        await self.presence.come_back(self._state)

    async def _load(self, engine: Weights, version: str, source: WeightsSource | None) -> None:
        """Loads weights; if that fails, those before. Raises: XylemError."""
        clears = [feed.clears for feed in self._feeds]
        try:
            await engine.update_weights(version, source)
        except XylemError as exc:
            log.error("weights_not_changed", version=version, reason=exc.message)
            try:
                if _is_sent(self._source):
                    raise EngineFailed("The weights before came through a transfer group.")
                await engine.update_weights(self._runner.weights, self._source)
            except XylemError as failure:
                self.presence.end(failure.message)
            raise
        await self._took(version, source, clears)

    async def _took(self, version: str, source: WeightsSource | None, clears: Sequence[int] = ()) -> None:
        """The engine has them, and no KV of others: nor has the index."""
        runner = self._runner
        runner.weights, self._source, self._dropped = version, source, False
        self.presence.awaits_weights = False
        for feed, before in zip(self._feeds, clears or [feed.clears for feed in self._feeds], strict=True):
            await feed.forget(before, version)
        await forget_guesses(runner, self._places)
        log.info("weights_changed", version=version)

    # What it may do.

    @property
    def _state(self) -> EngineState:
        return self.presence.state

    @property
    def _places(self) -> list[PlaceId]:
        """Its data-parallel ranks."""
        return [place_id(self._runner.worker, rank) for rank in range(len(self._runner.gates))]

    def _able(self, capability: type[T], what: str) -> T:
        if not isinstance(self._runner.engine, capability):
            raise RequestError(f"Engine {self._pool.engine} can't {what}.")
        return self._runner.engine

    def _weights(self, source: WeightsSource | None) -> Weights:
        """Raises: RequestError, also for a folder that is not allowed here."""
        if source is not None and source.path:
            allowed(source.path, self._runner.settings.weights_folder)
        return self._able(Weights, "change its weights")  # type: ignore[type-abstract]

    async def _wanted(self) -> PoolState:
        raw = await self._runner.redis.get(self._runner.keys.pool_state(self._pool_id))
        return PoolState() if raw is None else decode_pool_state(cast(bytes, raw))

    async def _awake_others(self) -> int:
        leases = await pool_leases(self._runner, self._pool_id)
        return sum(not lease.draining for lease in leases if lease.worker.id != self._runner.worker)


def _is_sent(source: WeightsSource | None) -> bool:
    """Whether a trainer sends the weights, through a transfer group."""
    return source is not None and not source.path
