"""Places requests: takes them from a prompt to a worker's queue.

Requests are placed in rounds: one read of the fleet, a decision for each request that sees the decisions before it, and
one write. A request that arrives during a round waits for the next. So a request costs two round trips to Redis, and a
burst of sixty costs two as well. Requests that find no room go to another cell, if one has room, or are held.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec.structs import replace

from app.dispatch.fleet.fleet_reader import FleetReader
from app.dispatch.inflight import InFlight
from app.dispatch.placing.abandoned import AbandonedAttempts
from app.dispatch.placing.adapter_loads import AdapterLoads
from app.dispatch.placing.embedding_index import EmbeddingIndex
from app.dispatch.placing.placement_commands import Placing
from app.dispatch.placing.placement_decisions import PlacementDecisions
from app.dispatch.placing.placement_outcomes import PlacementOutcomes
from app.dispatch.placing.placement_queue import PlacementQueue
from app.dispatch.placing.placement_round import PlacementRound
from app.dispatch.placing.round_trips import PlacementWriter, RoundReader
from app.dispatch.placing.tenant_shares import TenantShares
from app.errors import StoreDown, XylemError
from app.ids import HOME, ApiId, CellId, PoolId, RequestId
from app.keys import Keys
from app.messages.events import Done
from app.messages.job import Job
from app.messages.wanted import Adapter
from app.pools.schema import Pool
from app.store import Command, Wire

_NO_API = ApiId("")
_STRIDE = 8  # requests that are decided about before the event loop does something else


class Placer:
    """The placer of requests in one cell. Lives on the API's event loop."""

    def __init__(
        self,
        wire: Wire,
        keys: Keys,
        fleet: FleetReader,
        pools: Mapping[PoolId, Pool],
        retry_after_s: int,
        patience_s: float,
        in_flight: Mapping[RequestId, InFlight],
        fail: Callable[[InFlight, XylemError], None],
        adapter: Callable[[str], Adapter | None],
        wake_pool: Callable[[PoolId], None],
        token_redis: int,
        broker: Wire | None = None,
        cell: CellId = HOME,
        api: ApiId = _NO_API,
        step_aside: Callable[[InFlight], None] | None = None,
    ) -> None:
        """`in_flight`: the awaited requests. `fail` ends one whose `place` has already returned. `api`: this replica.

        `adapter`: the one of that name. `wake_pool` begins to wake a worker of the pool. `token_redis`:
        `Job.token_redis` of jobs in this cell. `broker`: the Redis of Celery's messages, if it is another one.
        `step_aside`: as `TenantShares` has it.
        """
        self._cell, self._token_redis = cell, token_redis
        self.is_down = False  # its Redis is unreachable, and there are other cells: nobody waits for it
        self._wire, self._fleet, self._pools, self._in_flight = wire, fleet, pools, in_flight
        self.shares = TenantShares(wire, keys, pools, in_flight, cell, api=api, step_aside=step_aside)
        self.queue = PlacementQueue(
            pools, self.shares, in_flight, fail, patience_s=patience_s, retry_after_s=retry_after_s
        )
        self._writer = PlacementWriter(wire, broker)
        self._reader = RoundReader(fleet, EmbeddingIndex(wire, keys, pools), self.shares, self._writer)
        self._decisions = PlacementDecisions(keys, pools, self.shares, broker_apart=self._writer.broker_apart)
        self._outcomes = PlacementOutcomes(
            self.queue, pools, wire, fleet, wake_pool=wake_pool, stop_later=self.stop_later
        )
        self._adapters = AdapterLoads(keys, adapter, self.queue)
        self._abandoned = AbandonedAttempts(wire, keys)
        self._rounds: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Shares the engines among tenants with other replicas, until cancelled."""
        await self.shares.run(self.queue.held.waiting)

    @property
    def held(self) -> int:
        """Number of requests that are held."""
        return sum(1 for f in self._in_flight.values() if f.attempt.held_since and not f.job.worker)

    def has_line(self, pools: Collection[PoolId]) -> bool:
        """Whether requests are held for lack of room in these pools."""
        return self.queue.held.has_line(pools)

    async def place(self, inflight: InFlight) -> None:
        """Returns when the request is on its worker's queue, not awaited any more, or has been held for a while.

        Raises: NoWorker, Saturated, StoreDown, DeadlineOver.
        """
        if (
            inflight.placed is None or inflight.placed.done()
        ):  # else its worker gave it back before Redis confirmed the placement
            inflight.placed = asyncio.get_running_loop().create_future()
        self.take(inflight)
        await inflight.placed

    def take(self, inflight: InFlight) -> None:
        """Takes over a request that is waited for in `place`, here or in another cell."""
        inflight.attempt = inflight.attempt.in_cell(self._cell, self._token_redis)
        self.queue.coming.append(inflight)
        self._wake()

    async def stop(self, jobs: Sequence[Job]) -> None:
        """Ends jobs on their workers. Raises: StoreDown."""
        if self.is_down:
            raise StoreDown
        await self._abandoned.stop(jobs)

    def stop_later(self, job: Job) -> None:
        """Nobody awaits this attempt any more: stops it on its workers, as soon as Redis is reachable."""
        if job.worker:
            self._abandoned.add(job)
            self._wake()

    def request_ended(self) -> None:
        """A request has ended somewhere: held requests are tried again."""
        if self.queue.held:
            self.queue.look_again.set()

    def _wake(self) -> None:
        self.queue.look_again.set()
        if self._rounds is None:
            self._rounds = asyncio.create_task(self._run_rounds())

    def audit(self, inflight: InFlight, end: Done) -> None:
        """Compares what it was expected to find in a cache with what it found."""
        self._decisions.audit(inflight, end)

    async def _run_rounds(self) -> None:
        queue = self.queue
        try:
            while queue.coming or queue.held or self._abandoned:
                await queue.gather()
                in_flight, began = queue.take(), time.monotonic()
                try:
                    if in_flight:
                        await self._round(in_flight)
                except Exception as exc:  # noqa: BLE001 (no client may wait for ever)
                    self._interrupted(in_flight, exc, began)
                if not self.is_down:
                    await self._abandoned.stop_all()
        finally:
            self._rounds = None

    def _interrupted(self, in_flight: list[InFlight], exc: Exception, began: float) -> None:
        """The round of these requests has failed: they wait until Redis is back, or end."""
        for inflight in in_flight:
            if isinstance(exc, StoreDown) and self._wire.connected_before:
                since = inflight.attempt.held_since or began  # the attempt took its time, too
                inflight.attempt = replace(inflight.attempt, held_since=since)
                self.queue.hold(inflight, exc)
            elif not (inflight.job.worker and inflight.is_placed):  # else its worker has it
                self.queue.refuse(inflight, exc)

    async def _round(self, in_flight: list[InFlight]) -> None:
        if self.is_down:
            raise StoreDown
        in_flight = [f for f in in_flight if f.job.adapter is None or self._adapters.resolved(f)]
        if not in_flight:
            return
        lines, fleet = self.queue.held, self._fleet
        round_ = PlacementRound(in_flight, self._pools, fleet.grids, fleet.weights)
        await self._reader.read(round_, in_flight, lines.patience_left_s(in_flight))
        placed_requests: list[InFlight] = []
        placings: list[Placing] = []
        predictions: list[Command] = []
        lines.look_again(in_flight)
        for number, inflight in enumerate(in_flight):
            if number % _STRIDE == _STRIDE - 1:
                await asyncio.sleep(0)
            try:
                placing, expectations = self._decisions.decide(round_, inflight)
            except Exception as exc:  # noqa: BLE001 (one request that can't be placed doesn't stop the others)
                self._outcomes.undecided(round_, inflight, exc)
                continue
            placings.append(placing)
            predictions += expectations
            placed_requests.append(inflight)
        await self._write(round_, placed_requests, placings, predictions)

    async def _write(
        self,
        round_: PlacementRound,
        placed_requests: list[InFlight],
        placings: list[Placing],
        predictions: list[Command],
    ) -> None:
        others = self._adapters.ask(round_.asks) if round_.asks else []
        if self.shares.is_shared:
            self.shares.count(self.queue.held.waiting())
            others += self.shares.tell()
        index = self._fleet.index
        replies = await self._writer.write(placings, others if index.is_apart else predictions + others)
        self._outcomes.written(placed_requests, placings, replies)
        if index.is_apart:
            await index.ask(predictions)  # afterwards: no client waits for that server
        for pool, view in round_.views.items():
            self._decisions.meters[pool].shared(view.candidates)
        for inflight in placed_requests:
            if not self.queue.awaits(inflight):
                self.stop_later(inflight.job)
