"""What aside requests may have of an engine beside those they give way to. Pure: the gate acts."""

from collections.abc import Sequence

from msgspec import Struct

from app.pools import Aside
from app.routing.preemptible import FULL

_ARRIVALS = 16  # one of so many seats is left to new online requests
_UNKNOWN = 8  # one of so many seats is theirs beside others, until it is known how long steps take
_NEXT = 4  # one for so many seats waits at the gate while the engine has no others, so that no seat stays empty
_WAITING = 2  # more of them than may run beside others, so that there is one when a seat becomes free
# With nobody else there, so many seconds of prompts at once, since a new request waits for the step that is under
# way: the least, and the more the longer nobody has come.
_AT_ONCE_S, _AT_ONCE_SHARE = 0.05, 0.01
_OF_OTHERS = 0.1
_QUIET_S = 60.0  # after which no seat is kept free for new online requests; an aside request is sent away within a step


class EngineLoad(Struct, frozen=True):
    """One rank's engine and what it has. A request has a seat for each of its choices."""

    seats: int
    blocks: int
    used: int = 0  # blocks that are held, or will be when the prompts that have come are computed
    online: int = 0  # seats of requests that nothing is put before
    aside: int = 0  # and of those that give way to them
    step_s: float = 0.0  # of a step with nothing in it; 0: not known
    request_step_s: float = 0.0  # by which a request makes it longer
    quiet_s: float = 0.0  # since a request was here that nothing is put before


class Wish(Struct, frozen=True):
    """An aside request that wants to enter."""

    seats: int
    blocks: int
    tokens: int  # of its context, of which some may be cached


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
    """How many such requests the worker takes, some of which wait at its gate."""
    if load.used > FULL * load.blocks:
        return 0
    if not load.online:
        return load.seats + max(_WAITING, load.seats // _NEXT)
    run = most(load, rules) if rules.prefill_share else 0
    return run + _WAITING if run else 0


def may_enter(load: EngineLoad, rules: Aside, wish: Wish, computing: int, speed: float) -> bool:
    """`computing`: prompt tokens of aside requests under way, at `speed` tokens a second.

    Beside others, the pause after the last entry has to be over as well.
    """
    if not load.online and not load.aside:
        return True  # whatever its size: there will be no better moment
    if load.aside + wish.seats > most(load, rules) or load.used + wish.blocks > FULL * load.blocks:
        return False
    at_once_s = max(_AT_ONCE_S, _AT_ONCE_SHARE * load.quiet_s)
    return not computing or computing + wish.tokens <= at_once_s * speed


def pause(tokens: int, speed: float, step_s: float, busy: float, rules: Aside) -> float:
    """Seconds after which the next one may enter beside others, when so many tokens of the last one are computed.

    However few these are, they make a step longer, and a gap in everybody's answer: that share of the steps may be so.
    Where the others' own prompts do that for the share `busy` of the time, a tenth of that isn't noticed either.
    """
    share = max(rules.prefill_share, _OF_OTHERS * busy) if rules.prefill_share else 0.0
    return max(tokens / speed, step_s) / share if share else float("inf")


def too_many(load: EngineLoad, rules: Aside, inside: Sequence[Wish]) -> int:
    """How many of those `inside`, in the order of their entry, have to go: the last ones."""
    if not load.online:
        return 0
    seats, used, count = load.aside, load.used, 0
    while count < len(inside) and (seats > most(load, rules) or used > FULL * load.blocks):
        count += 1
        seats -= inside[-count].seats
        used -= inside[-count].blocks
    return count


def _reserve(load: EngineLoad) -> int:
    return max(1, load.seats // _ARRIVALS) if load.quiet_s < _QUIET_S else 0
