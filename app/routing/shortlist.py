"""The places among which the cheapest one for a prompt is, found without a look at all of them. Pure.

A place without blocks of the prompt costs at least its line and the whole prefill, and places that hold equally many
blocks differ in their lines only. So each of these groups is looked at in the order of the lines, as far as a place may
still be cheaper than the best one found. `tests/unit/test_shortlist.py` holds it equal to the full scan.
"""

from collections.abc import Callable, Collection, Sequence
from heapq import nlargest

from app.routing.candidates import ALL, Ask, Candidate, Matches, Option, Room
from app.routing.cost import Fleet, kv_cost, others_cost, uncached_tokens
from app.routing.lines import Lines
from app.routing.policy import affinity, can_serve, is_full

_FEW = 8  # places that are cheaper to look at than to find in the order
_HOMES = 4  # of a session, in the order of its preference
_MOST_HOMES = 10_000  # sessions that are remembered


def shortlist(
    ask: Ask,
    places: Sequence[Candidate],
    lines: Lines,
    matches: Matches,
    fleet: Fleet,
    weight: float,
    fits: Callable[[Candidate], bool],
    also: Collection[int] = (),
) -> list[Option]:
    """Options that may take it and have room: one of the cheapest is among them, and those of `also`.

    `lines`: of these places, or of earlier moments of the round, when they were not longer. `weight`: of the delay of
    other requests.
    """
    options: dict[int, Option | None] = {}
    best = float("inf")

    def look(place: int) -> float:
        """The cost of the best one with it."""
        if place in options:
            return best
        c, options[place] = places[place], None
        if not can_serve(c) or is_full(c, ask.room) or not fits(c):
            return best
        option = options[place] = matches.option(place, c)
        return min(best, kv_cost(ask, option, fleet, weight).total)

    for place in (*also, *matches.coming):
        best = look(place)
    # A beginning saves less than to have it cached: so its places cost at least what they would if it were.
    for depth, holders in [*matches.depths, *matches.beginnings, (0, None)]:
        if holders is not None and len(holders) <= _FEW:
            for place in holders:
                best = look(place)
            continue
        # Of a holder: while a pool's workers are replaced, others may have blocks of another size.
        prefill = _prefill_s(ask, places[next(iter(holders or (0,)))], depth, fleet)
        for line, place in lines.ordered(ask.now):
            if line + prefill + others_cost(fleet, weight, line, prefill) >= best:
                break
            if holders is None or place in holders:
                best = look(place)
    return [option for option in options.values() if option is not None]


def home(
    session: str,
    places: Sequence[Candidate],
    homes_of: dict[str, list[int]],
    fits: Callable[[Candidate], bool],
    room: Room = ALL,
) -> int | None:
    """The place that the session prefers of those that may take it and have room; None: it is not known.

    `homes_of`: what earlier calls found, for the same places.
    """
    homes = homes_of.get(session)
    if homes is None:
        if len(homes_of) >= _MOST_HOMES:
            homes_of.clear()
        homes = nlargest(_HOMES, range(len(places)), key=lambda i: affinity(session, places[i]))
        homes_of[session] = homes
    return next((i for i in homes if can_serve(c := places[i]) and not is_full(c, room) and fits(c)), None)


def _prefill_s(ask: Ask, place: Candidate, depth: int, fleet: Fleet) -> float:
    """Seconds of a prefill at a place that holds so many blocks, or another one whose blocks have its size."""
    return uncached_tokens(ask, Option(place, depth)) / fleet.tokens_per_s[place.lease.worker.pool]
