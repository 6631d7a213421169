"""Puts the engine to sleep, pauses it, changes its weights: by command, and as the pool's state says at the start.

Always in this order: out of routing, then its requests, then the engine. It comes back after one token. On the
engine's loop.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar, cast

from msgspec.structs import replace

from app.engines.base import (
    Elastic,
    Encoder,
    EncodeRequest,
    ExpertRecorder,
    GenerateRequest,
    Pauser,
    Profiler,
    Sleeper,
    Weights,
)
from app.errors import EngineFailed, RequestError, XylemError
from app.ids import PlaceId, PoolId, RunId, place_id
from app.messages import (
    EngineState,
    Pause,
    PauseMode,
    PoolState,
    Profile,
    RecordExperts,
    Resume,
    Sampling,
    Scale,
    SetWeights,
    Sleep,
    StateCommand,
    Wake,
    WeightsSource,
    decode_lease,
    decode_pool_state,
)
from app.pools import Pool
from app.routing.pool_state import allowed, sleeps
from app.runner.runner import Runner
from app.telemetry import logger
from workers.engine.kv_event_feed import KvEventFeed
from workers.engine.lease import LeaseKeeper

log = logger(__name__)
T = TypeVar("T")

_LOOK_S = 0.02  # how often to look whether all requests have ended
_LENT_S = 60.0  # how long other engines may take to fetch KV; most leases on it are shorter
_TOKEN_S = 120.0  # for the token after which the worker comes back
_FIRST = -(2**31)  # the priority of that token
_CHECK = Sampling(max_tokens=1, temperature=0.0)


class StateKeeper:
    """One change at a time."""

    def __init__(
        self, runner: Runner, lease: LeaseKeeper, pool_id: PoolId, pool: Pool, feeds: Sequence[KvEventFeed]
    ) -> None:
        self._runner, self._lease, self._pool_id, self._pool, self._feeds = runner, lease, pool_id, pool, feeds
        self._source: WeightsSource | None = None  # of the present weights
        self._dropped = False  # a sleep has dropped the weights, and they were not loaded since
        self._awake: set[str] = set()  # of a sleeping engine, the tags that have been woken
        self._one = asyncio.Lock()

    async def execute(self, command: StateCommand) -> None:
        """Raises: XylemError when the engine can't, or has failed."""
        async with self._one:
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

    async def adopt(self) -> None:
        """Before the worker is registered: takes over the state of its pool. Raises: XylemError, RedisError."""
        wanted = await self._wanted()
        if wanted.weights:
            if wanted.source is not None and not wanted.source.path:
                log.warning("weights_awaited", version=wanted.weights, reason="they came through a transfer group")
                self._lease.state = replace(self._lease.state, changing=True)
            else:
                pauser, weights = self._able(Pauser, "pause"), self._weights(wanted.source)  # type: ignore[type-abstract]
                await pauser.pause("wait")
                await weights.update_weights(wanted.weights, wanted.source)
                await pauser.resume()
                await self._took(wanted.weights, wanted.source)
        if wanted.paused:
            await self._able(Pauser, "pause").pause(wanted.paused)  # type: ignore[type-abstract]
            self._lease.state = replace(self._lease.state, paused=wanted.paused)
            self._runner.closed = True
        if wanted.sleep and sleeps(await self._awake_others(), wanted.keep_awake):
            await self._sleep(wanted.sleep, "abort")
            if wanted.tags:
                await self._wake(wanted.tags)

    # One change each.

    async def _sleep(self, level: int, mode: PauseMode) -> None:
        sleeper = self._able(Sleeper, "sleep")  # type: ignore[type-abstract]
        if self._state.asleep:
            return
        async with self._leaving(mode):
            await self._lent()
            await sleeper.sleep(level, mode)
        self._awake, self._dropped = set(), level > 1
        await self._tell(replace(self._state, asleep=level))

    async def _wake(self, tags: Sequence[str]) -> None:
        sleeper = self._able(Sleeper, "sleep")  # type: ignore[type-abstract]
        if not self._state.asleep:
            return
        await self._tell(replace(self._state, changing=True))
        try:
            awake = await sleeper.wake(tags)
            self._awake |= set(tags or ("weights",))
            if awake:
                pauser = self._able(Pauser, "pause")  # type: ignore[type-abstract]
                await self._refresh_weights(pauser)
                if self._state.paused:
                    await pauser.pause("keep")
                else:
                    await pauser.resume()
                    await self._check()
                await self._come_back(replace(self._state, asleep=0))
        finally:
            await self._tell(replace(self._state, changing=False))

    async def _refresh_weights(self, pauser: Pauser) -> None:
        """Weights that the sleep has dropped, or that the pool has got meanwhile. Raises: XylemError."""
        wanted = await self._wanted()
        if wanted.weights == self._runner.weights and not self._dropped:
            return
        await pauser.pause("keep")
        if wanted.source is not None and not wanted.source.path:
            raise EngineFailed("Its weights come through a transfer group, and have to be sent again.")
        await self._weights(wanted.source).update_weights(wanted.weights, wanted.source)
        await self._took(wanted.weights, wanted.source)

    async def _pause(self, mode: PauseMode) -> None:
        pauser = self._able(Pauser, "pause")  # type: ignore[type-abstract]
        if self._state.asleep:
            raise RequestError("It sleeps.")
        if self._state.paused:
            return
        async with self._leaving(mode):
            await pauser.pause(mode)
        await self._tell(replace(self._state, paused=mode))

    async def _resume(self) -> None:
        pauser = self._able(Pauser, "pause")  # type: ignore[type-abstract]
        if not self._state.paused:
            return
        if not self._state.asleep:
            await pauser.resume()
        await self._come_back(replace(self._state, paused=None))

    async def _scale(self, ranks: int) -> None:
        elastic = self._able(Elastic, "change its ranks")  # type: ignore[type-abstract]
        if self._state.asleep or self._state.paused:
            raise RequestError("It sleeps, or is paused.")
        if ranks == len(self._places):
            return
        async with self._leaving("wait"):
            await self._lent()
            runner, before = self._runner, self._places
            info = await elastic.scale(ranks)
            runner.take(info)
            self._lease.take(info)
            gone = [place for place in before if place not in self._places]
            keys = [key(self._pool_id, place) for place in gone for key in (runner.keys.kv, runner.keys.kv_rebuilt)]
            if keys:
                await runner.redis.unlink(*keys)
            await self._check()
        await self._come_back(self._state)

    async def _set_weights(self, version: str, source: WeightsSource | None, mode: PauseMode) -> None:
        engine, pauser = self._weights(source), self._able(Pauser, "pause")  # type: ignore[type-abstract]
        if version == self._runner.weights:
            return
        if self._state.asleep and "weights" not in self._awake:
            if source is not None and not source.path:
                raise RequestError("It sleeps: wake its weights first, with tags=['weights'].")
            return  # it takes them when it wakes
        stopped = bool(self._state.paused or self._state.asleep)
        if stopped:
            await self._load(engine, version, source)
            await self._tell(self._state)
            return
        async with self._leaving(mode):
            await self._lent()
            await pauser.pause(mode)
            try:
                await self._load(engine, version, source)
            finally:
                await pauser.resume()
            await self._check()
        await self._come_back(self._state)

    async def _load(self, engine: Weights, version: str, source: WeightsSource | None) -> None:
        """Loads weights; if that fails, those before. Raises: XylemError."""
        clears = [feed.clears for feed in self._feeds]
        try:
            await engine.update_weights(version, source)
        except XylemError as exc:
            log.error("weights_not_changed", version=version, reason=exc.message)
            try:
                if self._source is not None and not self._source.path:
                    raise EngineFailed("The weights before came through a transfer group.")
                await engine.update_weights(self._runner.weights, self._source)
            except XylemError as gone:
                log.critical("weights_lost", reason=gone.message)
                os.kill(os.getpid(), signal.SIGTERM)  # a restarted worker loads what its pool says
            raise
        await self._took(version, source, clears)

    async def _took(self, version: str, source: WeightsSource | None, clears: Sequence[int] = ()) -> None:
        """The engine has them, and no KV of others: nor has the index."""
        runner = self._runner
        runner.weights, self._source, self._dropped = version, source, False
        self._lease.state = replace(self._lease.state, weights=version)
        for feed, before in zip(self._feeds, clears or [feed.clears for feed in self._feeds], strict=True):
            await feed.forget(before, version)
        await runner.redis.unlink(*(runner.keys.predicted(self._pool_id, place) for place in self._places))
        log.info("weights_changed", version=version)

    # Out of routing, and back.

    @property
    def _state(self) -> EngineState:
        return self._lease.state

    @property
    def _places(self) -> list[PlaceId]:
        """Its data-parallel ranks."""
        return [place_id(self._runner.worker, rank) for rank in range(len(self._runner.gates))]

    async def _tell(self, state: EngineState) -> None:
        self._lease.state = state
        await self._lease.tell()

    @asynccontextmanager
    async def _leaving(self, mode: PauseMode) -> AsyncIterator[None]:
        """Out of routing, with its requests gone unless `mode` keeps them; after a failure it comes back."""
        before, runner = self._state, self._runner
        if mode == "wait" and before.paused and runner.runs:
            raise RequestError("It is paused, so its requests don't end: resume it, or use the mode abort or keep.")
        await self._tell(replace(before, changing=True))
        try:
            if mode == "wait":
                await self._without_requests()
            runner.closed = True
            if mode == "abort":
                runner.give_all_back()
                await self._without_requests()
            await runner.emitter.drained()
            yield
        except BaseException:
            if isinstance(runner.engine, Pauser) and not before.paused and not before.asleep:
                await runner.engine.resume()
            runner.closed = bool(before.asleep or before.paused or before.changing)
            await self._tell(replace(before, weights=runner.weights))
            raise
        self._lease.state = replace(self._state, changing=False)

    async def _without_requests(self) -> None:
        """Returns when none runs here, is in its queue, or on its way from a prefill worker."""
        runner, key = self._runner, self._runner.keys.reservations(self._runner.worker)
        while runner.runs or await runner.redis.hlen(key):  # noqa: ASYNC110 (Redis has no event for it)
            await asyncio.sleep(_LOOK_S)

    async def _lent(self) -> None:
        await self._runner.wait_for_lent_blocks(_LENT_S)

    async def _come_back(self, state: EngineState) -> None:
        self._runner.closed = bool(state.asleep or state.paused)
        await self._tell(replace(state, changing=False))

    async def _check(self) -> None:
        """One token on each rank, as for a client; or one of a request that was kept. Raises: EngineFailed."""
        engine, worker = self._runner.engine, self._runner.worker
        if self._runner.runs:
            await self._goes_on()
            return
        for rank in range(len(self._places)):
            run = RunId(f"check-{worker}-{rank}")
            made = 0
            try:
                async with asyncio.timeout(_TOKEN_S):
                    if self._pool.task != "generate":
                        asked = EncodeRequest(run, [[1]], self._pool.task, None, _FIRST, rank)
                        made = len(await cast(Encoder, engine).encode(asked))
                    else:
                        request = GenerateRequest(run, [1], _CHECK, _FIRST, rank)
                        async with aclosing(engine.generate(request)) as steps:
                            made = sum([len(step.tokens) async for step in steps])
            except TimeoutError:
                raise EngineFailed(f"No token within {_TOKEN_S:g} s.") from None
            if not made:
                raise EngineFailed("It made no token.")

    async def _goes_on(self) -> None:
        """Returns after a token of its requests. Raises: EngineFailed."""
        emitter, end = self._runner.emitter, time.monotonic() + _TOKEN_S
        before = emitter.emitted + emitter.withheld
        while self._runner.runs and emitter.emitted + emitter.withheld == before:
            if time.monotonic() > end:
                raise EngineFailed(f"No token within {_TOKEN_S:g} s.")
            await asyncio.sleep(_LOOK_S)

    # What it may do.

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
        redis, keys = self._runner.redis, self._runner.keys
        others = await redis.hkeys(keys.pool(self._pool_id))
        raws = [await redis.get(keys.worker(cast(bytes, other).decode())) for other in others]  # type: ignore[arg-type]
        return sum(not decode_lease(cast(bytes, raw)).draining for raw in raws if raw is not None)
