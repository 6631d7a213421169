"""Engines by name: this package's own, and those that installed packages declare as entry points of `xylem.engines`.

An entry is a class with the methods of `app/engines/base.py`, called with a pool and the address by which engines on
other hosts reach it. Nothing is imported before an engine is created.
"""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

_GROUP = "xylem.engines"
_OWN = {
    "mock": "app.engines.mock.engine:MockEngine",
    "sglang": "app.engines.sglang:SglangEngine",
    "trtllm": "app.engines.trtllm.engine:TrtllmEngine",
    "vllm": "app.engines.vllm:VllmEngine",
}


def engine_names() -> list[str]:
    return sorted({*_OWN, *entry_points(group=_GROUP).names})


def is_engine(name: str) -> bool:
    return name in _OWN or name in entry_points(group=_GROUP).names


def load_engine(name: str) -> Any:
    """The engine's class. Raises: LookupError when the name is unknown; ImportError when a package is missing."""
    if name in _OWN:
        return EntryPoint(name, _OWN[name], _GROUP).load()
    (found,) = entry_points(group=_GROUP, name=name) or (None,)
    if found is None:
        raise LookupError(name)
    return found.load()
