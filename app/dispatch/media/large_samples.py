"""The samples that are too large for Redis: they stay in the process that awaits their request."""

from collections.abc import Callable, Mapping

from app.dispatch.media.sample_memory import Excess, SampleMemory
from app.dispatch.media.sample_port import SamplePort
from app.ids import RequestId
from app.messages.held import HeldSamples

LARGE = 10**6  # bytes of one; smaller ones outlive the process, in Redis


class LargeSamples:
    def __init__(self, address: str, port: int, can_collect: Callable[[], bool]) -> None:
        """`address`, `port`: as `SamplePort` has them. `can_collect`: whether all workers know how to collect them."""
        self._port, self._can_collect = SamplePort(address, port), can_collect
        self._memory = SampleMemory()
        self._held: dict[RequestId, HeldSamples] = {}

    def among(self, data: Mapping[str, bytes]) -> dict[str, bytes]:
        """The samples of a request that are held here; none while a worker of an older version reads all from Redis."""
        large = {name: one for name, one in data.items() if len(one) > LARGE}
        return large if large and self._can_collect() else {}

    async def hold(
        self, request: RequestId, data: Mapping[str, bytes], most: Mapping[str, int]
    ) -> Excess | HeldSamples:
        """Holds a request's samples until `release`, unless an owner would have more than it may. Raises: MediaLost."""
        if request not in self._held:
            await self._port.open()
            if excess := self._memory.add(request, data, most):
                return excess
            self._held[request] = self._port.offer(data)
        return self._held[request]

    def release(self, request: RequestId) -> None:
        if offer := self._held.pop(request, None):
            self._port.withdraw(offer.token)
            self._memory.remove(request)

    @property
    def sizes(self) -> Mapping[str, int]:
        """Bytes, by owner."""
        return self._memory.sizes

    async def close(self) -> None:
        await self._port.close()
