"""The requests that wait to be placed, new and held ones: which are next, and how the wait of each ends."""

import asyncio
from collections.abc import Callable, Mapping
from itertools import accumulate

from app.dispatch.inflight import InFlight
from app.dispatch.placing.held_requests import LOOK_EVERY_S, SHARED_LOOK_S, HeldRequests, urgency
from app.dispatch.placing.tenant_shares import TenantShares
from app.errors import Saturated, XylemError
from app.ids import PoolId, RequestId
from app.pools.schema import Pool
from app.telemetry import logger

log = logger(__name__)

# With this many requests in flight, a round first waits a little for more: a round costs the CPU of a sixth of a
# short request, and at such a load the wait is a small part of the time to the first token.
_BUSY, _GATHER_S = 32, 0.002
_ROUND = 64  # requests: Redis does nothing else while it matches their prompts
_ROUND_TOKENS = 2**18  # of their prompts: the event loop does nothing else while it hashes and writes them


class PlacementQueue:
    def __init__(
        self,
        pools: Mapping[PoolId, Pool],
        shares: TenantShares,
        in_flight: Mapping[RequestId, InFlight],
        fail: Callable[[InFlight, XylemError], None],
        *,
        patience_s: float,
        retry_after_s: int,
    ) -> None:
        """`in_flight`, `fail`: as `Placer` has them."""
        self._shares, self._in_flight, self._fail, self._retry_after_s = shares, in_flight, fail, retry_after_s
        # Sends a request that is refused here (None: for lack of room) to another cell; whether it has done so.
        self.elsewhere: Callable[[InFlight, XylemError | None], bool] = _nowhere
        self.held = HeldRequests(pools, patience_s, shares)
        self.coming: list[InFlight] = []
        self.look_again = asyncio.Event()  # held requests are to be tried again

    async def gather(self) -> None:
        """Returns when a round may begin: a little later where many requests come, or when held ones may be tried."""
        if self.coming:
            if len(self._in_flight) > _BUSY:
                await asyncio.sleep(_GATHER_S)
            return
        try:
            async with asyncio.timeout(SHARED_LOOK_S if self._shares.is_shared else LOOK_EVERY_S):
                await self.look_again.wait()
        except TimeoutError:
            pass
        self.look_again.clear()

    def take(self) -> list[InFlight]:
        """The requests of the next round; if they can't be told, all end with an error, and it has none."""
        requests = [*self.coming, *self.held] if self.held else self.coming
        try:
            return self._next()
        except Exception as exc:  # noqa: BLE001 (no client waits for ever)
            self.coming = []
            self.held.clear()
            for inflight in requests:
                self.settle(inflight, exc)
            return []

    def _next(self) -> list[InFlight]:
        """The requests to be placed now, the most urgent first: heads of the lines, and new ones that don't queue."""
        came, self.coming = self.coming, []
        self.held.forget_empty_lines()
        for inflight in sorted(came, key=urgency) if len(came) > 1 else came:
            if not self.awaits(inflight):
                self.settle(inflight, None)  # its answer has ended, or nobody awaits it
            elif self.held.has_to_queue(inflight):
                self.hold(inflight)
            else:
                self.coming.append(inflight)
        heads, last, settlements = self.held.take(self.awaits)
        for inflight, why in settlements:
            self.settle(inflight, why)
        size = len(self.coming)
        if size > 1:
            size = _round_size([len(inflight.job.prompt) for inflight in self.coming[:_ROUND]])
        in_flight, self.coming = self.coming[:size], self.coming[size:]
        return heads + in_flight + last

    def withdraw(self, inflight: InFlight) -> bool:
        """Holds it no longer: its `place` returns. False: it was not held just now."""
        if not self.held.remove(inflight):
            return False
        self.settle(inflight, None)
        return True

    def awaits(self, inflight: InFlight) -> bool:
        """Whether its answer is still awaited."""
        return self._in_flight.get(inflight.job.request) is inflight

    def hold(self, inflight: InFlight, why: XylemError | None = None) -> None:
        """Holds it, for lack of room or for the reason `why`, unless it goes to another cell."""
        if self.elsewhere(inflight, why):
            return
        least = self.held.push(inflight, why)
        if least is not None:
            self.settle(least, least.attempt.refused or Saturated(retry_after_s=self._retry_after_s))

    def refuse(self, inflight: InFlight, error: Exception) -> None:
        """Ends its wait with an error, unless it goes to another cell."""
        if not (isinstance(error, XylemError) and self.elsewhere(inflight, error)):
            self.settle(inflight, error)

    def settle(self, inflight: InFlight, error: Exception | None) -> None:
        """Lets `place` return or raise; if it has returned already, an error becomes an event."""
        if error is not None and not isinstance(error, XylemError):
            job = inflight.job
            log.error("placement_failed", request=job.request, **job.names, exc_info=error)
            error = XylemError()
        assert inflight.placed is not None
        if not inflight.placed.done():
            if error is None:
                inflight.placed.set_result(None)
            else:
                inflight.placed.set_exception(error)
        elif error is not None:
            self._fail(inflight, error)


def _nowhere(_inflight: InFlight, _why: XylemError | None) -> bool:
    """Returns False, since there are no other cells."""
    return False


def _round_size(prompts: list[int]) -> int:
    """Number of requests that one round takes, by the tokens of their prompts; at least one."""
    return max(1, sum(total <= _ROUND_TOKENS for total in accumulate(prompts)))
