"""Engines by name: this package's own, and those that installed packages declare as entry points of `xylem.engines`.

An entry is a class with the methods of `app/engines/base.py`, called with a pool and the address by which engines on
other hosts reach it. Those of pools of task `image` are `xylem.painters`, with the methods of
`app/painters/base.py`. Nothing is imported before an engine is created.
"""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

_GROUP, _PAINTERS = "xylem.engines", "xylem.painters"
_OWN = {
    "mock": "app.engines.mock.engine:MockEngine",
    "omni": "app.engines.omni.engine:OmniEngine",
    "sglang": "app.engines.sglang:make_engine",
    "trtllm": "app.engines.trtllm.make:make_engine",
    "vllm": "app.engines.vllm:VllmEngine",
}
_OWN_PAINTERS = {
    "diffusers": "app.painters.diffusers.engine:DiffusersPainter",
    "mock": "app.painters.mock:MockPainter",
    "omni": "app.painters.omni.engine:OmniPainter",
    "sglang": "app.painters.sglang.engine:SglangPainter",
    "trtllm": "app.painters.trtllm.engine:TrtllmPainter",
}
# Of engines that may span several hosts, what runs on those that don't lead. Their classes take a third argument, the
# `Node`.
_FOLLOWERS = {
    "mock": "app.engines.mock.follower:MockFollower",
    "sglang": "app.engines.sglang.follower:SglangFollower",
    "vllm": "app.engines.vllm.follower:VllmFollower",
}


def spanning_engines() -> list[str]:
    """Names of the engines that may span several hosts."""
    return sorted(_FOLLOWERS)


def load_follower(name: str) -> Any:
    """Raises: KeyError when the engine runs on one host; ImportError when a package is missing."""
    return EntryPoint(name, _FOLLOWERS[name], _GROUP).load()


def engine_names(*, paints: bool = False) -> list[str]:
    own, group = _of(paints)
    return sorted({*own, *entry_points(group=group).names})


def is_engine(name: str, *, paints: bool = False) -> bool:
    own, group = _of(paints)
    return name in own or name in entry_points(group=group).names


def load_engine(name: str, *, paints: bool = False) -> Any:
    """The engine's class. Raises: LookupError when the name is unknown; ImportError when a package is missing."""
    own, group = _of(paints)
    if name in own:
        return EntryPoint(name, own[name], group).load()
    (entry,) = entry_points(group=group, name=name) or (None,)
    if entry is None:
        raise LookupError(name)
    return entry.load()


def _of(paints: bool) -> tuple[dict[str, str], str]:
    return (_OWN_PAINTERS, _PAINTERS) if paints else (_OWN, _GROUP)
