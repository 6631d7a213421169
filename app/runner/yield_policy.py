"""Decides how much of an engine aside requests may use beside online ones. Pure: the gate acts."""

from collections.abc import Sequence

from msgspec import Struct

from app.pools.schema import Aside
from app.routing.preemptible import FULL

_ARRIVALS = 16  # 1/16 of the seats is kept free for new online requests
_UNKNOWN = 8  # aside requests get 1/8 of the seats beside online ones, until step times are known
_NEXT = 4  # without online requests, so many wait at the gate that no seat stays empty: 1/4 of the seats
_WAITING = 2  # beside online requests, so many wait at the gate for a seat that becomes free
# Without online requests, seconds of aside prompts that are computed at once: a new request waits for the step under
# way. At least the first value; else a share of the time since the last online request.
_AT_ONCE_S, _AT_ONCE_SHARE = 0.05, 0.01
_OF_OTHERS = 0.1  # of the time that online prompts take: aside prompts may take as much
_QUIET_S = 60.0  # without online requests; after it no seat is kept free for new ones: aside ones leave within a step


class EngineLoad(Struct, frozen=True):
    """One rank's engine and its load. A request has a seat for each of its choices."""

    seats: int
    blocks: int
    used: int = 0  # blocks that are held, or will be once accepted prompts are computed
    online: int = 0  # seats of online requests
    aside: int = 0  # seats of aside requests
    step_s: float = 0.0  # duration of a step without requests; 0: unknown
    request_step_s: float = 0.0  # what each request adds to a step
    quiet_s: float = 0.0  # since the last online request ended


class Need(Struct, frozen=True):
    """The part of an engine that a request needs."""

    seats: int
    blocks: int
    tokens: int  # of its context; some may be cached


def most(load: EngineLoad, rules: Aside) -> int:
    """Seats that aside requests may have now."""
    if not load.online:
        return max(1, load.seats - _reserve(load))
    free = max(0, load.seats - _reserve(load) - load.online)
    if not load.request_step_s:
        return min(free, load.seats // _UNKNOWN if rules.step_share else 0)
    longer = rules.step_share * (load.step_s + load.online * load.request_step_s)
    return min(free, int(longer / load.request_step_s))


def taken(load: EngineLoad, rules: Aside) -> int:
    """Number of aside requests that the worker takes, with those that wait at its gate."""
    if load.used > FULL * load.blocks:
        return 0
    if not load.online:
        return load.seats + max(_WAITING, load.seats // _NEXT)
    run = most(load, rules) if rules.prefill_share else 0
    return run + _WAITING if run else 0


def may_enter(load: EngineLoad, rules: Aside, need: Need, computing: int, speed: float) -> bool:
    """`computing`: prompt tokens of aside requests that the engine is computing, at `speed` tokens a second.

    Beside online requests, the `pause` after the last entry has to be over as well.
    """
    if not load.online and not load.aside:
        return True  # whatever its size: the engine is empty
    if load.aside + need.seats > most(load, rules) or load.used + need.blocks > FULL * load.blocks:
        return False
    at_once_s = max(_AT_ONCE_S, _AT_ONCE_SHARE * load.quiet_s)
    return not computing or computing + need.tokens <= at_once_s * speed


def pause(tokens: int, speed: float, step_s: float, busy: float, rules: Aside) -> float:
    """Seconds until the next one may enter beside online requests, after one with `tokens` to compute.

    Even few tokens make a step longer, and all answers wait: only the share `prefill_share` of the steps may be such.
    Online prompts do the same for the share `busy` of the time; a tenth of that may be added unnoticed.
    """
    share = max(rules.prefill_share, _OF_OTHERS * busy) if rules.prefill_share else 0.0
    return max(tokens / speed, step_s) / share if share else float("inf")


def too_many(load: EngineLoad, rules: Aside, inside: Sequence[Need]) -> int:
    """Number of those `inside`, in the order of their entry, that have to give way: the last ones."""
    if not load.online:
        return 0
    seats, used_blocks, count = load.aside, load.used, 0
    while count < len(inside) and (seats > most(load, rules) or used_blocks > FULL * load.blocks):
        count += 1
        seats -= inside[-count].seats
        used_blocks -= inside[-count].blocks
    return count


def _reserve(load: EngineLoad) -> int:
    return max(1, load.seats // _ARRIVALS) if load.quiet_s < _QUIET_S else 0
