"""Pausing, sleeping, changing weights and profiling a loaded vLLM.

On a CPU vLLM pauses for a sleep as elsewhere, but frees no memory.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest
from vllm.platforms import current_platform
from vllm.v1.engine.async_llm import AsyncLLM

from app.engines.operator_state import OperatorState
from app.engines.vllm.convert import translate
from app.engines.vllm.tiers.config import tells_of_tiers
from app.errors import EngineFailed, RequestError
from app.messages.kinds import PauseMode
from app.messages.wanted import WeightsSource
from app.pools.schema import Tiers


class VllmControl(OperatorState):
    """Implements `app.engines.base`'s Pauser, Sleeper, Weights and Profiler."""

    def __init__(self, engine: Callable[[], AsyncLLM], path: str, tiers: Tiers | None = None) -> None:
        """`path`: of the weights that it is started with."""
        super().__init__()
        self._engine, self._path, self._tiers = engine, path, tiers

    async def pause(self, mode: PauseMode) -> None:
        with _ours():
            await self._engine().pause_generation(mode=mode, clear_cache=False)
        self._paused = True

    async def resume(self) -> None:
        self._check_resume()
        with _ours():
            await self._engine().resume_generation()
        self._paused = False

    async def sleep(self, level: int, mode: PauseMode) -> None:
        engine = self._engine()
        if not current_platform.is_cpu() and not engine.vllm_config.model_config.enable_sleep_mode:
            raise RequestError("This pool's vLLM can't sleep: it needs args.enable_sleep_mode.")
        self._paused = True
        with _ours():
            await engine.sleep(level, mode)
        self._fell_asleep(level)

    async def wake(self, tags: Sequence[str] = ()) -> bool:
        self._check_tags(tags)
        rest = [tag for tag in tags if tag in self._asleep]  # vLLM wakes none if one of them is awake
        if self._asleep and (rest or not tags):
            with _ours():
                fully = await self._engine().wake_up(rest or None)
            self._asleep = [tag for tag in self._asleep if tags and tag not in tags]
            self._paused = not fully
        if self._dropped and not self._paused:  # vLLM goes on by itself, but has no weights
            await self.pause("keep")
        return not self._asleep

    async def update_weights(self, version: str, source: WeightsSource | None) -> None:
        engine, tiers = self._engine(), self._tiers
        self._check_update(tiers)
        if tiers is None and tells_of_tiers(engine.vllm_config):
            raise RequestError("This pool's connector (args.kv_transfer_config) has KV of the weights of before.")
        with _ours():
            if source is not None and not source.path:
                await self._receive(engine, source)
            else:
                path = self._path if source is None else source.path  # vLLM's own default is the last path
                await engine.collective_rpc("reload_weights", kwargs={"weights_path": path})
            if not await engine.reset_prefix_cache(reset_running_requests=True, reset_connector=tiers is not None):
                raise EngineFailed("vLLM keeps KV for other engines.")
            await engine.update_weight_version(version)
        self._dropped = False

    async def start_profile(self, name: str = "") -> None:
        engine = self._engine()
        if engine.vllm_config.profiler_config.profiler is None:
            raise RequestError("This pool's vLLM can't be profiled: it needs args.profiler_config.")
        self._check_profile(runs=False)
        with _ours():
            await engine.start_profile(name or None)
        self._profiles = True

    async def stop_profile(self) -> None:
        self._check_profile(runs=True)
        self._profiles = False
        with _ours():
            await self._engine().stop_profile()

    async def _receive(self, engine: AsyncLLM, source: WeightsSource) -> None:
        """One update from the transfer group, which it joins first if told how."""
        if engine.vllm_config.weight_transfer_config is None:
            raise RequestError("This pool's vLLM is in no transfer group: it needs args.weight_transfer_config.")
        if source.init is not None:
            await engine.init_weight_transfer_engine(WeightTransferInitRequest(source.init))
        await engine.start_weight_update()
        await engine.update_weights(WeightTransferUpdateRequest(source.update or {}))
        await engine.finish_weight_update()


@contextmanager
def _ours() -> Iterator[None]:
    """vLLM's errors as ours."""
    try:
        yield
    except Exception as exc:
        raise translate(exc) from exc
