"""Groups of windows and states in the plugin's events, as decoded for any engine; none if it doesn't know enough."""

from functools import wraps
from types import SimpleNamespace
from typing import Any

import pytest

from app.engines import sglang_cache_groups as plugin
from app.kv.events import BlockRemoved, BlockStored, decode_batch
from app.messages.wire import encode


def test_its_events_are_read_as_any_others() -> None:
    batch = [1.0, [plugin._Stored([7, -8], 32, 1), plugin._Removed([7], 1)], None]
    stored_event, removed_event = decode_batch(encode(batch)).events
    assert stored_event == BlockStored([7, -8], None, [], 32, group_idx=1)
    assert removed_event == BlockRemoved([7], group_idx=1)


class Core:
    def set_component_device_value(self) -> None:
        """SGLang's method of this name."""


class Hooked:
    set_component_device_value = wraps(Core.set_component_device_value)(lambda _core: None)


def said(*parts: str, core: type[Any] = Hooked, tiers: Any = None, gates: bool = True) -> Any:
    window = SimpleNamespace(gates_prefix_match=gates, sliding_window_size=127)
    cache = SimpleNamespace(components=dict.fromkeys(parts, window), tree_core=core(), cache_controller=tiers)
    info: dict[str, Any] = {}
    plugin._say(info, SimpleNamespace(tree_cache=cache))
    return info.get(plugin.GROUPS)


def test_a_ready_scheduler_says_its_groups() -> None:
    assert said("full") == [(0, "all", 0)]
    assert said("full", "swa") == [(0, "all", 0), (1, "window", 128)]
    assert said("full", "swa", "mamba") == [(0, "all", 0), (1, "window", 128), (2, "state", 0)]


@pytest.mark.parametrize(
    "how", [{"core": Core}, {"tiers": "hicache"}, {"gates": False}], ids=["not hooked", "tiers", "windows don't matter"]
)
def test_it_says_nothing_where_something_else_decides_what_a_prompt_resumes_with(how: dict[str, Any]) -> None:
    assert said("full", "swa", **how) is None


def test_parts_of_another_kind_are_not_known() -> None:
    assert said("full", "c128") is None


def test_the_tree_is_in_python_only_where_its_parts_are_told_of() -> None:
    for parts, events, tree_kind in (("fs", True, "python"), ("f", True, None), ("fs", False, None)):
        params = SimpleNamespace(tree_components=tuple(parts), enable_kv_cache_events=events)
        assert plugin._in_python("rust", params) == tree_kind
