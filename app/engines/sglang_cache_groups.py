"""A plugin of SGLang's, loaded in its scheduler: its KV events tell of windows and states, too.

SGLang's own tell of what its layers that see everything hold. A prompt resumes only where what its windows and states
need is left as well, and that comes and goes by itself. So each of these gets events with a `group_idx`, as in vLLM.
"""

import sys
from collections.abc import Callable
from typing import Any

from msgspec import Struct

# A key of what a ready scheduler says: number, what it sees and width of each group, as in `CacheGroup`.
GROUPS = "xylem_groups"
_ALL, _WINDOW, _STATE = 0, 1, 2
_SCHEDULER = "sglang.srt.managers.scheduler"
_TREE = "sglang.srt.mem_cache.unified_cache"
_SET = f"{_TREE}.unified_tree_core.UnifiedTreeCore.set_component_device_value"
_STATES = f"{_TREE}.components.mamba.MambaComponent"
_WINDOWS = f"{_TREE}.components.swa.SWAComponent"


class _Stored(Struct, tag="BlockStored"):
    block_hashes: list[int]
    block_size: int
    group_idx: int
    token_ids: list[int] = []  # the group that sees everything has them
    parent_block_hash: int | None = None


class _Removed(Struct, tag="BlockRemoved"):
    block_hashes: list[int]
    group_idx: int


def register() -> None:
    if _SCHEDULER not in sys.modules:  # in a process without a cache, that would have to import it
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{_TREE}.tree_core_registry.select_tree_core_backend", _in_python, HookType.AFTER)
    HookRegistry.register(_SET, _put, HookType.AROUND)
    HookRegistry.register(f"{_STATES}.commit_insert_component_data", _put_state, HookType.AFTER)
    for component in (_WINDOWS, _STATES):
        HookRegistry.register(f"{component}.evict_component", _take, HookType.AROUND)
    HookRegistry.register(f"{_SCHEDULER}.Scheduler.get_init_info", _say, HookType.AFTER)


def _in_python(_choice: str, params: Any) -> str | None:
    """The tree in Rust runs none of the other hooks."""
    return "python" if params.enable_kv_cache_events and len(params.tree_components) > 1 else None


def _say(info: dict[str, Any], scheduler: Any) -> None:
    """Nothing where more than the hooks know decides what a prompt resumes with: tiers, or a cache of another make."""
    cache = scheduler.tree_cache
    parts = {str(part): component for part, component in getattr(cache, "components", {}).items()}
    put = getattr(type(getattr(cache, "tree_core", None)), "set_component_device_value", None)
    is_hooked = hasattr(put, "__wrapped__")
    has_tiers = cache.cache_controller is not None or getattr(cache, "linker", None) is not None
    window = parts.get("swa")
    if not is_hooked or has_tiers or not parts.keys() <= {"full", "swa", "mamba"}:
        return
    groups = [(_ALL, "all", 0)]
    if window is not None:
        if not window.gates_prefix_match:
            return
        width = window.sliding_window_size + 1  # with the token that needs so many before it
        groups.append((_WINDOW, "window", width))
    if "mamba" in parts:
        groups.append((_STATE, "state", 0))
    info[GROUPS] = groups


def _put(put: Callable[..., None], core: Any, node_id: int, component: Any, value: Any) -> None:
    data = core.node_by_id(node_id).component_data[component]
    had = data.value is not None
    put(core, node_id, component, value)
    if not had:
        _tell(core, core.node_by_id(node_id), component, came=True)


def _put_state(_none: None, states: Any, node: Any, is_new_leaf: bool, *_rest: Any, **_more: Any) -> None:
    if is_new_leaf:  # else it was put as any other
        _tell(states.tree_core, node, states.component_type, came=True)


def _take(take: Callable[..., Any], component: Any, node: Any, *rest: Any, **more: Any) -> Any:
    data = node.component_data[component.component_type]
    had = data.value is not None
    result = take(component, node, *rest, **more)
    if had and data.value is None:
        _tell(component.tree_core, node, component.component_type, came=False)
    return result


def _tell(core: Any, node: Any, component: Any, *, came: bool) -> None:
    from sglang.srt.mem_cache.events import KVCacheEventRecorder

    events = core.kv_events
    if not events.enabled:
        return
    names = KVCacheEventRecorder(
        enabled=True, page_size=events.page_size, dynamo_format=events.dynamo_format, lora_names=events.lora_names
    )
    names.record_remove(node)
    [removal] = names.take()
    hashes, group = (removal.block_hashes, _WINDOW) if component.is_swa else (removal.block_hashes[-1:], _STATE)
    events.enqueue(_Stored(hashes, events.page_size, group) if came else _Removed(hashes, group))
