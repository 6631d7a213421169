"""Carries out admins' changes of LoRA adapters: writes one down, and waits until the workers have done it."""

import asyncio
import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from app.adapters.assignment import is_for
from app.adapters.progress import Progress, others, progress
from app.adapters.registry import AdapterRegistry
from app.adapters.sources import check_source
from app.api.state import ApiState
from app.errors import DeadlineOver, ModelNotFound, RequestError
from app.ids import PoolId
from app.intervals import COMMANDS_TTL_S
from app.messages.commands import LoadAdapter
from app.messages.lease import Lease
from app.messages.wanted import Adapter
from app.messages.wire import encode
from app.telemetry import logger

log = logger(__name__)
_ACK_S = 60.0
_LOOK_S = 0.02


def registry(state: ApiState) -> AdapterRegistry:
    return AdapterRegistry(state.redis, state.keys)


def pools_of(state: ApiState, adapter: Adapter) -> list[PoolId]:
    """Pools that load the adapter."""
    return [name for name, pool in state.pools.items() if is_for(adapter, name, pool.model)]


async def leases_of(state: ApiState, adapter: Adapter) -> list[Lease]:
    """Leases of all workers of the adapter's model. Raises: StoreDown."""
    return await state.fleet.live([name for name, pool in state.pools.items() if pool.model == adapter.model])


async def add(state: ApiState, adapter: Adapter) -> tuple[Adapter, Progress]:
    """Raises: RequestError, ModelNotFound, DeadlineOver."""
    check_source(adapter.source, adapter.sha256, state.settings.allowed_lora_sources)
    models = {pool.model for pool in state.pools.values() if pool.task == "generate"}
    if adapter.model not in models:
        raise ModelNotFound(
            f"No pool generates with a model '{adapter.model[:100]}'. There are: {', '.join(sorted(models))}.",
            param="model",
        )
    if adapter.name in {pool.model for pool in state.pools.values()}:
        raise RequestError(f"'{adapter.name}' is a model of the pools file.", param="name")
    if adapter.name in state.aliases.table:
        raise RequestError(f"'{adapter.name}' is an alias.", param="name")
    if adapter.name in state.pipelines:
        raise RequestError(f"'{adapter.name}' is a pipeline.", param="name")
    strangers = [pool for pool in adapter.pools if pool not in state.pools or state.pools[pool].model != adapter.model]
    if strangers:
        raise RequestError(f"'{strangers[0][:100]}' is no pool of {adapter.model}.", param="pools")
    new_adapter, _before = await registry(state).add(adapter)
    return new_adapter, await _acknowledged(state, new_adapter)


async def swap(state: ApiState, name: str, source: str, sha256: str) -> tuple[Adapter, Progress]:
    """Afterwards no answer begins with the old version. Raises: RequestError, ModelNotFound, DeadlineOver."""
    check_source(source, sha256, state.settings.allowed_lora_sources)
    new_adapter, _before = await registry(state).swap(name, lambda old: replace(old, source=source, sha256=sha256))
    return new_adapter, await _acknowledged(state, new_adapter)


async def remove(state: ApiState, name: str) -> None:
    """Afterwards no answer begins with it. Raises: ModelNotFound, DeadlineOver."""
    old_adapter = await registry(state).remove(name)
    log.info("adapter_unwanted", adapter=old_adapter.versioned)
    await _told(state, old_adapter)
    await _until(state, old_adapter, lambda leases: not others(name, leases))


async def _acknowledged(state: ApiState, adapter: Adapter) -> Progress:
    log.info("adapter_wanted", adapter=adapter.versioned, model=adapter.model)
    await _told(state, adapter)
    pools = pools_of(state, adapter)
    leases = await _until(state, adapter, lambda some: progress(adapter, some, pools).done)
    return progress(adapter, leases, pools)


async def _told(state: ApiState, adapter: Adapter) -> None:
    """Tells this replica and the workers. One that doesn't hear it looks itself, at least each second."""
    await state.adapters.refresh()
    pipe = state.redis.pipeline(transaction=False)
    for lease in await leases_of(state, adapter):
        if not lease.worker.max_adapters:  # of an older version, perhaps, which would not understand
            continue
        key = state.keys.commands(lease.worker.id)
        pipe.rpush(key, encode(LoadAdapter()))
        pipe.expire(key, COMMANDS_TTL_S)
    await pipe.execute()


async def _until(state: ApiState, adapter: Adapter, is_done: Callable[[Sequence[Lease]], bool]) -> Sequence[Lease]:
    """Raises: DeadlineOver."""
    until = time.monotonic() + _ACK_S
    while not is_done(leases := await leases_of(state, adapter)):
        if time.monotonic() > until:
            raise DeadlineOver(f"Not all workers have done so within {_ACK_S:g} s. They go on: see /admin/loras.")
        await asyncio.sleep(_LOOK_S)
    return leases
