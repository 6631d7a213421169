"""The requests that wait for the same places: a line for each flow, and whose turn it is. No I/O."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Generic, TypeVar

from app.ids import TenantId
from app.routing.fair_order import CLASSES, Flow, turns
from app.routing.waiting_line import WaitingLine

T = TypeVar("T")
_EQUAL: Mapping[TenantId, float] = {}


class FairLine(Generic[T]):
    """A bounded line. With one tenant it is one line: by priority class, then by priority, deadline and arrival."""

    def __init__(self) -> None:
        self._lines: dict[Flow, WaitingLine[T]] = {}

    def __len__(self) -> int:
        return sum(len(line) for line in self._lines.values())

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self._lines.values())

    def flows(self) -> list[Flow]:
        return [*self._lines]

    def push(
        self,
        item: T,
        flow: Flow,
        priority: int,
        deadline: float,
        limit: int,
        *,
        stays: bool = False,
        weights: Mapping[TenantId, float] = _EQUAL,
    ) -> T | None:
        """Adds `item`. If there are more than `limit` now, removes one and returns it.

        That is the least urgent of the tenant that has the most for its weight: a flood refuses no other tenant.
        An item that `stays` is never removed for this.
        """
        line = self._lines.setdefault(flow, WaitingLine())
        line.push(item, priority, deadline, stays=stays)
        if stays or len(self) <= limit:
            return None
        lengths: dict[TenantId, float] = {}
        for f, of_flow in self._lines.items():
            if of_flow.has_removable:
                lengths[f.tenant] = lengths.get(f.tenant, 0.0) + len(of_flow) / weights.get(f.tenant, 1.0)
        longest = max(lengths, key=lengths.__getitem__)
        last = max(f for f, of_flow in self._lines.items() if f.tenant == longest and of_flow.has_removable)
        last_item = self._lines[last].pop_last()
        self._forget_empty()
        return last_item

    def drop(self, is_gone: Callable[[T], bool]) -> list[T]:
        """Removes and returns the items that are `is_gone`."""
        items = [item for line in self._lines.values() for item in line.drop(is_gone)]
        self._forget_empty()
        return items

    def take(
        self,
        most: int,
        tag: Callable[[Flow], float] = lambda _flow: 0.0,
        step: Callable[[Flow], tuple[float, float]] = lambda _flow: (1.0, 1.0),
        debts: Sequence[float] = (0.0,) * CLASSES,
        without: Callable[[Flow], bool] = lambda _flow: False,
    ) -> list[T]:
        """Removes and returns the next `most` items; and of each flow that has none of these the first one.

        For a tenant may find no room where another one does. `tag`, `step` and `debts`: as `turns` has them.
        `without`: the flows that have to wait for those of other replicas.
        """
        waiting = {flow: len(line) for flow, line in self._lines.items() if not without(flow)}
        order = turns(waiting, {f: tag(f) for f in waiting}, {f: step(f) for f in waiting}, most, debts)
        if len({flow.tenant for flow in waiting}) > 1:
            flows = {*order}
            order += [flow for flow in waiting if flow not in flows][:most]
        items = {flow: iter(self._lines[flow].take(count)) for flow, count in Counter(order).items()}
        self._forget_empty()
        return [next(items[flow]) for flow in order]

    def _forget_empty(self) -> None:
        self._lines = {flow: line for flow, line in self._lines.items() if line}
