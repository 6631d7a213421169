"""Pausing, sleeping, changing weights and profiling a loaded vLLM.

On a CPU vLLM pauses for a sleep as elsewhere, but frees no memory.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest
from vllm.platforms import current_platform
from vllm.v1.engine.async_llm import AsyncLLM

from app.engines.vllm.convert import translate
from app.errors import EngineFailed, RequestError
from app.messages import PauseMode, WeightsSource

TAGS = ("weights", "kv_cache")


class Control:
    """Implements `app.engines.base`'s Pauser, Sleeper, Weights and Profiler."""

    def __init__(self, engine: Callable[[], AsyncLLM], path: str) -> None:
        """`path`: of the weights that it is started with."""
        self._engine, self._path = engine, path
        self._paused = self._dropped = self._profiles = False  # `_dropped`: level 2 has dropped the weights
        self._asleep: list[str] = []  # the tags of what sleeps

    def check(self) -> None:
        """Raises: EngineFailed when no request can be taken."""
        if self._asleep:
            raise EngineFailed("The engine sleeps.")
        if self._dropped:
            raise EngineFailed("The engine has no weights: they were dropped, and not loaded again.")

    async def pause(self, mode: PauseMode) -> None:
        with _ours():
            await self._engine().pause_generation(mode=mode, clear_cache=False)
        self._paused = True

    async def resume(self) -> None:
        if self._asleep:
            raise RequestError("The engine sleeps.")
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
        self._asleep, self._dropped = list(TAGS), self._dropped or level > 1

    async def wake(self, tags: Sequence[str] = ()) -> bool:
        if unknown := [tag for tag in tags if tag not in TAGS]:
            raise RequestError(f"tags={unknown}: this engine has {list(TAGS)}.", param="tags")
        rest = [tag for tag in tags if tag in self._asleep]  # vLLM wakes none if one of them is awake
        if self._asleep and (rest or not tags):
            with _ours():
                fully = await self._engine().wake_up(rest or None)
            self._asleep = [tag for tag in self._asleep if tags and tag not in tags]
            self._paused = not fully
        if self._dropped and not self._paused:  # vLLM goes on by itself, but has no weights
            await self.pause("keep")
        return not self._asleep

    async def is_sleeping(self) -> bool:
        return bool(self._asleep)

    async def update_weights(self, version: str, source: WeightsSource | None) -> None:
        engine = self._engine()
        if not self._paused:
            raise EngineFailed("The engine has to be paused while its weights change.")
        if "weights" in self._asleep:
            raise RequestError("The weights sleep: wake them first, with tags=['weights'].")
        with _ours():
            if source is not None and not source.path:
                await self._receive(engine, source)
            else:
                path = self._path if source is None else source.path  # vLLM's own default is the last path
                await engine.collective_rpc("reload_weights", kwargs={"weights_path": path})
            if not await engine.reset_prefix_cache(reset_running_requests=True):
                raise EngineFailed("vLLM keeps KV for other engines.")
            await engine.update_weight_version(version)
        self._dropped = False

    async def start_profile(self, name: str = "") -> None:
        engine = self._engine()
        if engine.vllm_config.profiler_config.profiler is None:
            raise RequestError("This pool's vLLM can't be profiled: it needs args.profiler_config.")
        if self._profiles:
            raise RequestError("The profiler runs already.")
        with _ours():
            await engine.start_profile(name or None)
        self._profiles = True

    async def stop_profile(self) -> None:
        if not self._profiles:
            raise RequestError("The profiler does not run.")
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
