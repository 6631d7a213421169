"""The outcomes of a round: its requests that found no worker, and those that were written."""

from collections.abc import Callable, Mapping, Sequence

from app.dispatch.fleet.fleet_reader import FleetReader
from app.dispatch.inflight import InFlight
from app.dispatch.placing.placement_commands import Placing
from app.dispatch.placing.placement_queue import PlacementQueue
from app.dispatch.placing.placement_round import PlacementRound
from app.dispatch.placing.round_trips import SWAPPED, NotSent
from app.errors import DeadlineOver, NoWorker, Saturated, StoreDown, WeightsChanged
from app.ids import PoolId
from app.messages.job import Job
from app.pools.schema import Pool
from app.routing.pool_state import why_none
from app.store import Wire


class PlacementOutcomes:
    def __init__(
        self,
        queue: PlacementQueue,
        pools: Mapping[PoolId, Pool],
        wire: Wire,
        fleet: FleetReader,
        *,
        wake_pool: Callable[[PoolId], None],
        stop_later: Callable[[Job], None],
    ) -> None:
        """`wake_pool`, `stop_later`: as `Placer` has them."""
        self._queue, self._pools, self._wire, self._fleet = queue, pools, wire, fleet
        self._wake_pool, self._stop_later = wake_pool, stop_later

    def undecided(self, round_: PlacementRound, inflight: InFlight, exc: Exception) -> None:
        """Holds or refuses a request for which no worker was found."""
        if isinstance(exc, DeadlineOver):
            self._queue.settle(inflight, exc)
        elif isinstance(exc, Saturated):
            self._wakes(round_, inflight)
            self._queue.held.full(inflight.line)
            self._queue.hold(inflight)
        elif isinstance(exc, NoWorker) and not isinstance(exc, WeightsChanged):
            self._without_worker(inflight, exc, round_)
        else:
            self._queue.refuse(inflight, exc)

    def written(self, requests: Sequence[InFlight], placings: Sequence[Placing], replies: Sequence[object]) -> None:
        """Takes what Redis answered to the placings of these requests, in order."""
        for inflight, placing, reply in zip(requests, placings, replies, strict=True):
            if inflight.job.attempt != placing.attempt:
                continue  # its worker gave it back before this reply came, and it waits to be placed anew
            if isinstance(reply, NotSent):
                self._stop_later(inflight.job)
                inflight.again(None, reply.code)
                self._queue.hold(inflight, reply)
            elif isinstance(reply, StoreDown):
                inflight.attempt = inflight.attempt.unplaced()
                if inflight.job.attempt:
                    self._queue.hold(inflight, reply)
                else:
                    self._queue.refuse(inflight, reply)
            elif reply == SWAPPED:  # since this replica looked: it soon looks again
                inflight.attempt = inflight.attempt.unplaced()
                self._queue.hold(
                    inflight, NoWorker(f"The adapter '{inflight.adapter_name}' has just changed. Try again.")
                )
            elif reply:
                self._queue.settle(inflight, None)
            else:  # a worker's lease has ended: decide again
                self._fleet.forget([stage.pool for stage in inflight.job.stages])
                inflight.attempt = inflight.attempt.unplaced()
                self._queue.coming.append(inflight)
        for inflight in requests:
            if inflight.attempt.held_since and inflight.job.worker:
                self._queue.look_again.set()  # a held request found room: there may be some for the next

    def _wakes(self, round_: PlacementRound, inflight: InFlight) -> bool:
        """Wakes a worker of each of its pools that says so and has a sleeping one. Whether there is one."""
        pools = [pool for group in inflight.groups for pool in group if self._pools[pool].wake_on_request]
        asleep = [pool for pool in pools if any(le.state.asleep for le in round_.leases(inflight, pool))]
        for pool in asleep:
            self._wake_pool(pool)
        return bool(asleep)

    def _without_worker(self, inflight: InFlight, exc: NoWorker, round_: PlacementRound) -> None:
        """Holds the request if it was accepted before, or if its pools had a worker lately; else refuses it.

        If all workers sleep, a new one is held only if it wakes them.
        """
        asleep = why_none(round_.leases(inflight))
        if self._wakes(round_, inflight) or (asleep and inflight.job.attempt):
            self._queue.hold(inflight, asleep or exc)
            return
        if asleep:
            self._queue.refuse(inflight, asleep.of(self._pools[inflight.groups[0][0]].model))
            return
        if (
            not round_.had_worker(inflight) and self._wire.is_steady()
        ):  # else Redis has just come back, and workers are renewing leases
            self._queue.held.gone(inflight.line, exc)
        if self._queue.held.may_wait(inflight):
            self._queue.hold(inflight, exc)
        else:
            self._queue.refuse(inflight, exc)
