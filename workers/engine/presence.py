"""Whether the worker is in routing. It leaves before its engine stops, and comes back after a token. On its loop."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec.structs import replace

from app.engines.base import EngineInfo, Pauser
from app.errors import EngineDead, EngineFailed, RequestError, XylemError
from app.messages.kinds import PauseMode
from app.messages.lease import EngineState
from app.pools.schema import Pool
from app.runner.runner import Runner
from app.telemetry import logger
from workers.engine.lease import LeaseKeeper
from workers.engine.probe import Probe

log = logger(__name__)

_SENT_S = 5.0  # how long the last events may take
_LOOK_S = 0.02  # how often to look whether all requests have ended
_LENT_S = 60.0  # how long other engines may take to fetch KV; most leases on it are shorter
_TOKEN_S = 120.0  # for the token after which the worker comes back


class Presence:
    def __init__(self, runner: Runner, lease: LeaseKeeper, pool: Pool) -> None:
        self._runner, self._lease, self.probe = runner, lease, Probe(runner, pool)
        self.awaits_weights = False  # those of the pool are still to come, through a transfer group
        self._ends = False

    @property
    def state(self) -> EngineState:
        return self._lease.state

    async def tell(self, state: EngineState) -> None:
        self._lease.state = state
        await self._lease.tell()

    @asynccontextmanager
    async def leaving(self, mode: PauseMode) -> AsyncIterator[None]:
        """Out of routing, with its requests gone unless `mode` keeps them, until `come_back`; at once after a failure.

        Raises: RequestError.
        """
        before, runner = self.state, self._runner
        if mode == "wait" and before.paused and runner.runs:
            raise RequestError("It is paused, so its requests don't end: resume it, or use the mode abort or keep.")
        await self.tell(replace(before, changing=True))
        try:
            if mode == "wait":
                await self._without_requests()
            runner.closed = True
            if mode == "abort":
                runner.give_all_back()
                await self._without_requests()
            await runner.emitters.drained(_SENT_S)
            yield
        except BaseException as exc:
            if isinstance(exc, EngineDead):
                self.end(exc.message)
            await self._undo(before)
            raise

    def take(self, info: EngineInfo) -> None:
        """Takes over a change of what the worker can do, which is told when it comes back."""
        self._runner.take(info)
        self._lease.take(info)

    async def lends_nothing(self) -> None:
        await self._runner.wait_for_lent_blocks(_LENT_S)

    async def come_back(self, state: EngineState) -> None:
        """Returns the worker to routing, unless it sleeps, is paused, awaits weights, or ends."""
        stays_out = self.awaits_weights or self._ends
        self._runner.closed = bool(state.asleep or state.paused or stays_out)
        await self.tell(replace(state, weights=self._runner.weights, changing=stays_out))

    async def prove(self) -> None:
        """One token on each rank, as for a client; or one of a request that was kept. Raises: EngineFailed."""
        runner = self._runner
        if runner.runs:
            await self._goes_on()
        else:
            await self.probe(_TOKEN_S)

    async def give_up(self, why: str) -> None:
        """Out of routing at once, and ends the worker: its engine is of no use."""
        self.end(why)
        await self.come_back(self.state)

    def end(self, why: str) -> None:
        """Ends a worker whose engine is of no use: a restarted one takes over what its pool says."""
        if not self._ends:  # a second signal would end it at once
            self._ends = True
            log.critical("engine_of_no_use", reason=why)
            os.kill(os.getpid(), signal.SIGTERM)

    async def _undo(self, before: EngineState) -> None:
        engine = self._runner.engine
        if isinstance(engine, Pauser) and not (self._ends or before.paused or before.asleep):
            try:
                await engine.resume()
            except XylemError as exc:  # its requests would stand still for ever
                self.end(exc.message)
        if self._ends:
            self._runner.give_all_back()
        await self.come_back(before)

    async def _without_requests(self) -> None:
        """Returns when none runs here, is in its queue, or on its way from a prefill worker."""
        runner, key = self._runner, self._runner.keys.reservations(self._runner.worker)
        while runner.runs or await runner.redis.hlen(key):  # noqa: ASYNC110 (Redis has no event for it)
            await asyncio.sleep(_LOOK_S)

    async def _goes_on(self) -> None:
        """Returns after a token of its requests. Raises: EngineFailed."""
        emitters, end = self._runner.emitters, time.monotonic() + _TOKEN_S
        before = emitters.outputs
        while self._runner.runs and emitters.outputs == before:
            if time.monotonic() > end:
                raise EngineFailed(f"No token within {_TOKEN_S:g} s.")
            await asyncio.sleep(_LOOK_S)
