"""Pausing, sleeping and changing weights, as a mock engine does it: no memory is freed, and nothing is read.

The weights' version is part of what answers depend on, so that each version answers differently, and always the same.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from app.engines.mock.args import MockArgs
from app.engines.mock.choice import Stream
from app.engines.mock.core import Core
from app.engines.operator_state import OperatorState
from app.errors import EngineFailed, RequestError
from app.messages.kinds import ExpertAction, PauseMode
from app.messages.wanted import WeightsSource
from app.pools.schema import Tiers

_LOOK_S = 0.002


class MockControl(OperatorState):
    """Implements `app.engines.base`'s Pauser, Sleeper, Weights, Profiler and ExpertRecorder, for all cores."""

    def __init__(
        self,
        args: MockArgs,
        cores: Sequence[Core],
        streams: Callable[[], Iterable[Stream]],
        abort: Callable[[Stream], None],
        tiers: Tiers | None = None,
    ) -> None:
        super().__init__()
        self._args, self._cores, self._streams, self._abort = args, cores, streams, abort
        self._tiers = tiers
        self.weights = ""  # the version
        self._records = False

    async def pause(self, mode: PauseMode) -> None:
        if mode == "abort":
            for stream in list(self._streams()):
                self._abort(stream)
        for core in self._cores:
            core.holds_new = mode == "wait"
        if mode == "wait":
            while any(core.scheduler.seated or core.scheduler.waiting for core in self._cores):  # noqa: ASYNC110 (a mock)
                await asyncio.sleep(_LOOK_S)
        await asyncio.gather(*(core.pause() for core in self._cores))
        self._paused = True

    async def resume(self) -> None:
        self._check_resume()
        self._paused = False
        for core in self._cores:
            core.resume()

    async def sleep(self, level: int, mode: PauseMode) -> None:
        await self.pause(mode)
        await self._takes(self._args.sleep_s)
        await self._forget()
        self._fell_asleep(level)

    async def wake(self, tags: Sequence[str] = ()) -> bool:
        self._check_tags(tags)
        await self._takes(self._args.wake_s)
        self._asleep = [tag for tag in self._asleep if tags and tag not in tags]
        if not self._asleep and not self._dropped:
            await self.resume()
        return not self._asleep

    async def update_weights(self, version: str, source: WeightsSource | None) -> None:
        self._check_update(self._tiers)
        if source is not None and source.path and not await asyncio.to_thread(Path(source.path).is_dir):
            raise EngineFailed(f"There is no folder {source.path}.")
        await self._takes(self._args.weights_s)
        await self._forget()
        self.weights, self._dropped = version, False
        for stream in self._streams():
            for choice in stream.choices:
                choice.use(version)

    async def start_profile(self, name: str = "") -> None:
        self._check_profile(runs=False)
        self._profiles = True

    async def stop_profile(self) -> None:
        self._check_profile(runs=True)
        self._profiles = False

    async def record_experts(self, action: ExpertAction) -> None:
        if action != "dump":
            self._records = action == "start"
        elif not self._records:
            raise RequestError("Nothing is recorded.")

    async def _forget(self) -> None:
        """Forgets all KV. Raises: EngineFailed while some of it is with other engines, or promised to them."""
        for core in self._cores:
            await core.forget()

    async def _takes(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._args.speedup)
