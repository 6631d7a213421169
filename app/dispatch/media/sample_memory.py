"""The large samples of requests in progress, in the memory of their process."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from app.ids import RequestId


class Excess(NamedTuple):
    """Bytes that are too many for an owner."""

    size: int  # of the request's
    owner: str
    has: int
    most: int


class HeldRequest(NamedTuple):
    owners: Sequence[str]
    data: Mapping[str, bytes]  # by their hashes


class SampleMemory:
    """Counts each sample once for each owner, as `media/held.lua` does it for those in Redis."""

    def __init__(self) -> None:
        self._requests: dict[RequestId, HeldRequest] = {}
        self._holders: Counter[tuple[str, str]] = Counter()  # of a hash, by owner
        self._bytes: Counter[str] = Counter()

    def add(self, request: RequestId, data: Mapping[str, bytes], most: Mapping[str, int]) -> Excess | None:
        """Holds them until `remove`, unless an owner would have too many bytes. `most`: how many each may have."""
        if request in self._requests:
            return None
        for owner, limit in most.items():
            more = sum(len(one) for name, one in data.items() if not self._holders[name, owner])
            if self._bytes[owner] + more > limit:
                return Excess(sum(map(len, data.values())), owner, self._bytes[owner], limit)
        self._requests[request] = HeldRequest([*most], data)
        for owner in most:
            for name, one in data.items():
                self._holders[name, owner] += 1
                if self._holders[name, owner] == 1:
                    self._bytes[owner] += len(one)
        return None

    def remove(self, request: RequestId) -> None:
        owners, data = self._requests.pop(request, HeldRequest((), {}))
        for owner in owners:
            for name, one in data.items():
                self._holders[name, owner] -= 1
                if not self._holders[name, owner]:
                    del self._holders[name, owner]
                    self._bytes[owner] -= len(one)
            if not self._bytes[owner]:
                del self._bytes[owner]

    @property
    def sizes(self) -> Mapping[str, int]:
        """Bytes, by owner."""
        return dict(self._bytes)
