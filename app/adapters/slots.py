"""Chooses what a worker loads next, and what has to go for it. Pure."""

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

# What was used so lately stays, though another one is wanted: requests come for it, and none for that one yet.
_LATELY_S = 60.0


class Use(Struct, frozen=True):
    """An adapter in the engine."""

    requests: int = 0  # that have it now
    last: float = 0.0  # when one last came, on any clock


class Step(Struct, frozen=True):
    load: str | None = None
    remove: list[str] = []  # before that


def next_step(
    slots: int,
    in_engine: Mapping[str, Use],
    current: Collection[str],
    names: Sequence[str],
    requests: Sequence[str],
    now: float,
) -> Step:
    """Adapters by `Adapter.versioned`: `current`, that may be had at all; `names`, that this worker is to have.

    `requests`: requests wait for them. What has requests is never removed. What is not current goes as soon as it can.
    """
    old = [name for name, use in in_engine.items() if name not in current and not use.requests]
    uses = {name: use for name, use in in_engine.items() if name not in old}
    for name in (*requests, *names):
        if name in uses or name not in current:
            continue
        if len(uses) < slots:
            return Step(name, old)
        idle = [n for n, use in uses.items() if not use.requests and _may_go(n, use, name in requests, names, now)]
        if idle:
            return Step(name, [*old, min(idle, key=lambda n: uses[n].last)])
    return Step(None, old)


def _may_go(name: str, use: Use, asked: bool, names: Collection[str], now: float) -> bool:
    return asked or (name not in names and now - use.last > _LATELY_S)
