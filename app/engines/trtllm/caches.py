"""Contents of the ranks' caches: the engine's KV events, published, and the groups of layers that they are of."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.engines.base import KvEventSource
from app.engines.kv_publisher import KvEventArgs, KvPublisher
from app.engines.trtllm.events import RankEvents, groups_of


class Caches:
    """Belongs to the event loop on which it was created."""

    def __init__(self, beginnings: Sequence[Mapping[str, Any]], ranks: int, block_size: int, longest: int) -> None:
        """`beginnings`: what it has told. `longest`: its `max_seq_len`. Raises: EngineFailed, KeyError, ValueError."""
        groups = groups_of([event for event in beginnings if _rank(event) == 0], block_size, longest)
        self.groups, self.has_told = groups or (), groups is not None
        self._events = [RankEvents(block_size, self.groups) for _ in range(ranks)]
        self._publishers = [KvPublisher(KvEventArgs(), rank) for rank in range(ranks)]
        for event in beginnings:
            self.take(event)

    def take(self, event: Mapping[str, Any]) -> None:
        """Raises: KeyError, ValueError."""
        rank = _rank(event)
        if kv_events := self._events[rank].read(event):
            self._publishers[rank].publish(kv_events)

    def sources(self) -> dict[int, KvEventSource]:
        return {rank: publisher.source for rank, publisher in enumerate(self._publishers)}

    async def close(self) -> None:
        for publisher in self._publishers:
            await publisher.close()


def _rank(event: Mapping[str, Any]) -> int:
    return event.get("attention_dp_rank") or 0
