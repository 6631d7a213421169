"""Pausing, sleeping, changing weights and profiling a loaded SGLang.

On a CPU SGLang goes through a sleep as elsewhere, but frees no memory.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec
from sglang.srt.managers.io_struct import (
    BeginWeightUpdateReqInput,
    ContinueGenerationReqInput,
    EndWeightUpdateReqInput,
    InitWeightsUpdateGroupReqInput,
    PauseGenerationReqInput,
    ProfileReq,
    ReleaseMemoryOccupationReqInput,
    ResumeMemoryOccupationReqInput,
    UpdateWeightFromDiskReqInput,
    UpdateWeightsFromDistributedReqInput,
)

from app.engines.operator_state import OperatorState
from app.errors import EngineFailed, RequestError
from app.messages.kinds import PauseMode
from app.messages.wanted import WeightsSource
from app.pools.schema import Pool

M = TypeVar("M", bound=msgspec.Struct)

_MEMORY = {"weights": ["weights"], "kv_cache": ["kv_cache", "cuda_graph"]}  # ours, and SGLang's for the same memory
_PROFILES = "SGLANG_TORCH_PROFILER_DIR"
_LOOK_S = 0.01


class SglangControl(OperatorState):
    """Implements `app.engines.base`'s Pauser, Sleeper, Weights and Profiler.

    A paused scheduler computes nothing and executes commands. `in_place` leaves requests their KV, with which neither
    weights nor memory may change; `retract` takes it from them, and they are computed again.
    """

    def __init__(
        self,
        manager: Callable[[], Any],
        pool: Pool,
        fields: Mapping[str, Any],
        answer: Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]],
    ) -> None:
        """`manager`: SGLang's TokenizerManager. `fields`: of its ServerArgs. `answer`: awaits its answer."""
        super().__init__()
        self._manager, self._pool, self._fields, self._answered = manager, pool, fields, answer
        self._on_cpu = fields.get("device") == "cpu"

    async def pause(self, mode: PauseMode) -> None:
        manager = self._manager()
        async with manager.is_pause_cond:
            manager.is_pause = True  # new requests wait here
        if mode == "abort":
            if self._paused:
                await self._stop("retract")  # what stands still on the engine would be aborted in its next step only
            manager.abort_request(abort_all=True)
        if mode != "keep":
            await self._answered(self._requests_end(manager))
        await self._stop("in_place")
        self._paused = True

    async def resume(self) -> None:
        self._check_resume()
        await self._manager().continue_generation(ContinueGenerationReqInput())
        self._paused = False

    async def sleep(self, level: int, mode: PauseMode) -> None:
        if not self._on_cpu:
            requirements = ["enable_memory_saver", *(["enable_weights_cpu_backup"] if level == 1 else [])]
            if missing := [f"args.{name}" for name in requirements if not self._fields.get(name)]:
                raise RequestError(f"This pool's SGLang can't sleep at level {level}: it needs {', '.join(missing)}.")
        await self.pause(mode)
        await self._stop("retract")
        await self._answered(self._manager().release_memory_occupation(ReleaseMemoryOccupationReqInput()))
        self._fell_asleep(level)

    async def wake(self, tags: Sequence[str] = ()) -> bool:
        self._check_tags(tags)
        if woken_tags := [tag for tag in self._asleep if not tags or tag in tags]:
            theirs = [name for tag in woken_tags for name in _MEMORY[tag]]
            await self._answered(self._manager().resume_memory_occupation(ResumeMemoryOccupationReqInput(tags=theirs)))
            self._asleep = [tag for tag in self._asleep if tag not in woken_tags]
        if woken_tags and not self._asleep and not self._dropped:
            await self.resume()
        return not self._asleep

    async def update_weights(self, version: str, source: WeightsSource | None) -> None:
        self._check_update()
        manager = self._manager()
        await self._stop("retract")
        if source is not None and not source.path:
            await self._receive(manager, source, version)
        else:
            path = str(self._pool.model_dir) if source is None else source.path
            if not await asyncio.to_thread(os.path.isdir, path):
                raise EngineFailed(f"There is no folder {path}.")  # SGLang would look for it on the hub
            request = UpdateWeightFromDiskReqInput(model_path=path, weight_version=version)
            has_succeeded, message, _ = await self._answered(manager.update_weights_from_disk(request))
            _succeeded(done=has_succeeded, message=message)
        self._dropped = False

    async def start_profile(self, name: str = "") -> None:
        if not os.environ.get(_PROFILES):
            raise RequestError(f"This pool's SGLang can't be profiled: it needs args.env.{_PROFILES}.")
        self._check_profile(runs=False)
        kinds = ["CPU"] if self._on_cpu else ["CPU", "GPU"]
        await self._profile(self._manager().start_profile(ProfileReq(activities=kinds, profile_prefix=name or None)))
        self._profiles = True

    async def stop_profile(self) -> None:
        self._check_profile(runs=True)
        self._profiles = False
        await self._profile(self._manager().stop_profile())

    async def _stop(self, how: Literal["in_place", "retract"]) -> None:
        """Returns when the scheduler stands still. Raises: RequestError, EngineDead."""
        manager = self._manager()
        if how == "retract" and self._pool.role != "both" and await manager.model_update_lock.is_locked():
            raise RequestError("SGLang computes no KV again that came from another engine: use the mode wait or abort.")
        await manager.pause_generation(PauseGenerationReqInput(mode=how))
        await self._answered(manager.get_internal_state())

    @staticmethod
    async def _requests_end(manager: Any) -> None:
        while await manager.model_update_lock.is_locked():  # noqa: ASYNC110 (SGLang's requests hold it)
            await asyncio.sleep(_LOOK_S)

    async def _receive(self, manager: Any, source: WeightsSource, version: str) -> None:
        """One update from the transfer group, which it joins first if told how."""
        if self._pool.data_parallel_size > 1:
            raise RequestError("SGLang with several ranks is in no transfer group.")
        if source.init is not None:
            request = _message(InitWeightsUpdateGroupReqInput, source.init, "transfer.init")
            has_succeeded, message = await self._answered(manager.init_weights_update_group(request))
            _succeeded(done=has_succeeded, message=message)
        update = {"weight_version": version} | (source.update or {})
        comes = _message(UpdateWeightsFromDistributedReqInput, update, "transfer.update")
        for step in (
            manager.begin_weight_update(BeginWeightUpdateReqInput()),
            manager.update_weights_from_distributed(comes),
            manager.end_weight_update(EndWeightUpdateReqInput()),
        ):
            has_succeeded, message = await self._answered(step)
            _succeeded(done=has_succeeded, message=message)

    async def _profile(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            await self._answered(work)
        except RuntimeError as exc:
            raise EngineFailed(f"SGLang's profiler: {exc}") from exc


def _succeeded(*, done: bool, message: str) -> None:
    if not done:
        raise EngineFailed(f"SGLang did not change its weights: {message}")


def _message(kind: type[M], fields: dict[str, Any], where: str) -> M:
    """Raises: RequestError for a field that SGLang doesn't have."""
    if unknown := fields.keys() - set(kind.__struct_fields__):
        raise RequestError(f"{where}: SGLang has no {', '.join(sorted(unknown))}.", param=where)
    try:
        message = kind(**fields)
        msgspec.convert(msgspec.to_builtins(message), kind)  # looks at the types
    except (TypeError, msgspec.ValidationError) as exc:
        raise RequestError(f"{where}: {exc}", param=where) from None
    return message
