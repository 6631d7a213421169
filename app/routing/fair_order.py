"""Decides whose turn it is when several tenants' requests wait. Pure.

Priority classes come first, and what waits in a class below the first one has at least `LEAST` of the time. Within a
class the lowest start tag is next (`tenant_service.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from app.ids import TenantId

CLASSES = 3  # of priorities: below 0, 0, above it
LEAST = 0.1  # of the engines' time, for the classes below another one that waits, where other tenants are in them


class Flow(NamedTuple):
    """One tenant's requests in one priority class: served in order, and beside other flows."""

    priority_class: int  # from 0, the most urgent one
    tenant: TenantId


def priority_class(priority: int) -> int:
    return 1 if priority == 0 else 0 if priority < 0 else 2


def lower(flow: Flow, waiting: Mapping[Flow, object]) -> list[Flow]:
    """Flows of other tenants that wait because a more urgent one does."""
    best = {f.tenant for f in waiting if f.priority_class <= flow.priority_class}
    return [f for f in waiting if f.priority_class > flow.priority_class and f.tenant not in best]


def owed_after(debts: Sequence[float], flow: Flow, cost: float, waiting: Mapping[Flow, object]) -> list[float]:
    """Seconds that are owed to the classes below each, after `flow` was served with this cost.

    `waiting`: the flows that waited then, with this one.
    """
    after = [*debts]
    for c in range(CLASSES):
        flows = [f for f in waiting if f.priority_class == c]
        below = lower(flows[0], waiting) if flows else []
        if not below:
            after[c] = 0.0
        elif flow.priority_class == c:
            after[c] += LEAST * cost
        elif flow in below:
            after[c] = max(-cost, after[c] - (1 - LEAST) * cost)
    return after


def next_flow(
    waiting: Mapping[Flow, object], tag: Callable[[Flow], float], debts: Sequence[float] = (0.0,) * CLASSES
) -> Flow:
    """The flow whose turn it is. `waiting`: flows that wait, one at least."""
    best = min(flow.priority_class for flow in waiting)
    first = [flow for flow in waiting if flow.priority_class == best]
    below = lower(first[0], waiting)
    if below and debts[best] > 0:
        return next_flow(dict.fromkeys(below), tag, debts)
    return min(first, key=tag)


def turns(
    waiting: Mapping[Flow, int],
    tags: Mapping[Flow, float],
    steps: Mapping[Flow, tuple[float, float]],
    most: int,
    debts: Sequence[float] = (0.0,) * CLASSES,
) -> list[Flow]:
    """The next `most` turns, if each is taken. `waiting`: requests of each flow.

    `steps`: what one of its requests costs, probably, and how far its tag advances then.
    """
    counts, now, order = {f: n for f, n in waiting.items() if n}, dict(tags), list[Flow]()
    if len({flow.priority_class for flow in counts}) == 1:
        return _turns_of_class(counts, now, steps, most)
    while counts and len(order) < most:
        flow = next_flow(counts, now.__getitem__, debts)
        order.append(flow)
        cost, step = steps[flow]
        debts = owed_after(debts, flow, cost, counts)
        now[flow] += step
        counts[flow] -= 1
        if not counts[flow]:
            del counts[flow]
    return order


def _turns_of_class(
    rest: Mapping[Flow, int], tags: Mapping[Flow, float], steps: Mapping[Flow, tuple[float, float]], most: int
) -> list[Flow]:
    """The `turns` of flows of one class, however many there are: nothing is owed to another one."""
    heap, counts, order = [(tags[flow], number, flow) for number, flow in enumerate(rest)], dict(rest), list[Flow]()
    heapify(heap)
    while heap and len(order) < most:
        tag, number, flow = heap[0]
        order.append(flow)
        counts[flow] -= 1
        if counts[flow]:
            heapreplace(heap, (tag + steps[flow][1], number, flow))
        else:
            heappop(heap)
    return order
