"""Places requests: takes them from a prompt to a worker's queue.

Requests are placed in rounds: one read of the fleet, a decision for each request that sees the decisions before it, and
one write. A request that arrives during a round waits for the next. So a request costs two round trips to Redis, and a
burst of sixty costs two as well. Requests that find no room go to another cell, if one has room, or are held.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate, count
from random import Random

from msgspec.structs import replace

from app.dispatch.fleet.fleet_reader import FleetReader
from app.dispatch.inflight import InFlight
from app.dispatch.placing.abandoned import AbandonedAttempts
from app.dispatch.placing.embedding_index import EmbeddingIndex
from app.dispatch.placing.held_requests import LOOK_EVERY_S, SHARED_LOOK_S, HeldRequests, urgency
from app.dispatch.placing.placement_commands import Placing, expected_tokens, placement, prediction
from app.dispatch.placing.placement_round import PlacementRound
from app.dispatch.placing.placement_writer import SWAPPED, NotSent, PlacementWriter
from app.dispatch.placing.tenant_shares import TenantShares
from app.errors import DeadlineOver, ModelNotFound, NoWorker, Saturated, StoreDown, WeightsChanged, XylemError
from app.ids import HOME, ApiId, CellId, PoolId, RequestId, WorkerId
from app.intervals import COMMANDS_TTL_S
from app.keys import Keys
from app.kv.blocks import HASH_BYTES
from app.kv.groups import blocks_of_step
from app.messages.commands import LoadAdapter
from app.messages.events import Done
from app.messages.job import Job
from app.messages.wanted import Adapter
from app.messages.wire import encode
from app.pools.schema import Pool
from app.routing.candidates import ALL
from app.routing.pool_state import why_none
from app.store import Command, Wire
from app.telemetry import FLEET_READ, RoutingMeters, logger

log = logger(__name__)

# With this many requests in flight, a round first waits a little for more: a round costs the CPU of a sixth of a
# short request, and at such a load the wait is a small part of the time to the first token.
_BUSY, _GATHER_S = 32, 0.002
_ASK_AGAIN_S = 1.0
_NO_API = ApiId("")
_ROUND = 64  # requests: Redis does nothing else while it matches their prompts
_STRIDE = 8  # requests that are decided about before the event loop does something else
_REDIS_S = 30.0  # within which an attempt has failed by itself, if Redis is away
_ROUND_TOKENS = 2**18  # of their prompts: the event loop does nothing else while it hashes and writes them


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
        # Sends a request that is refused here (None: for lack of room) to another cell; whether it has done so.
        self.elsewhere: Callable[[InFlight, XylemError | None], bool] = _nowhere
        self.is_down = False  # its Redis is unreachable, and there are other cells: nobody waits for it
        self._wire, self._keys, self._fleet, self._pools = wire, keys, fleet, pools
        self._writer = PlacementWriter(wire, broker)
        self._embeddings = EmbeddingIndex(wire, keys, pools)
        self._retry_after_s = retry_after_s
        self._in_flight, self._fail = in_flight, fail
        self._adapter, self._wake_pool = adapter, wake_pool
        self._asked: dict[tuple[WorkerId, str], float] = {}  # to load an adapter, and when
        self._abandoned = AbandonedAttempts(wire, keys)
        self._rng = Random()  # noqa: S311 (spreads load, guards nothing)
        self._turns = count()
        self._waiting: list[InFlight] = []
        self.shares = TenantShares(wire, keys, pools, in_flight, cell, api=api, step_aside=step_aside)
        self._held = HeldRequests(pools, patience_s, self.shares)
        self._try_held = asyncio.Event()
        self._rounds: asyncio.Task[None] | None = None
        self._routed = {name: RoutingMeters(name) for name in pools}

    async def run(self) -> None:
        """Shares the engines among tenants with other replicas, until cancelled."""
        await self.shares.run(self._held.waiting)

    @property
    def held(self) -> int:
        """Number of requests that are held."""
        return sum(1 for f in self._in_flight.values() if f.attempt.held_since and not f.job.worker)

    def has_line(self, pools: Collection[PoolId]) -> bool:
        """Whether requests are held for lack of room in these pools."""
        return self._held.has_line(pools)

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
        self._waiting.append(inflight)
        self._wake()

    def withdraw(self, inflight: InFlight) -> bool:
        """Holds it no longer: its `place` returns. False: it was not held just now."""
        if not self._held.remove(inflight):
            return False
        self._settle(inflight, None)
        return True

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
        if self._held:
            self._try_held.set()

    def _wake(self) -> None:
        self._try_held.set()
        if self._rounds is None:
            self._rounds = asyncio.create_task(self._run_rounds())

    async def _run_rounds(self) -> None:
        try:
            while self._waiting or self._held or self._abandoned:
                await self._gather()
                in_flight, began = self._next_safely(), time.monotonic()
                try:
                    if in_flight:
                        await self._round(in_flight)
                except Exception as exc:  # noqa: BLE001 (no client may wait for ever)
                    for inflight in in_flight:
                        if isinstance(exc, StoreDown) and self._wire.connected_before:
                            since = inflight.attempt.held_since or began  # the attempt took its time, too
                            inflight.attempt = replace(inflight.attempt, held_since=since)
                            self._hold(inflight, exc)
                        elif not (inflight.job.worker and inflight.is_placed):  # else its worker has it
                            self._refuse(inflight, exc)
                if not self.is_down:
                    await self._abandoned.stop_all()
        finally:
            self._rounds = None

    def _next_safely(self) -> list[InFlight]:
        """`_next`; if it fails, all its requests end with an error, and the next round begins with none."""
        requests = [*self._waiting, *self._held] if self._held else self._waiting
        try:
            return self._next()
        except Exception as exc:  # noqa: BLE001 (no client waits for ever)
            self._waiting = []
            self._held.clear()
            for inflight in requests:
                self._settle(inflight, exc)
            return []

    def _next(self) -> list[InFlight]:
        """The requests to be placed now, the most urgent first: heads of the lines, and new ones that don't queue."""
        came, self._waiting = self._waiting, []
        self._held.forget_empty_lines()
        for inflight in sorted(came, key=urgency) if len(came) > 1 else came:
            if not self._awaited(inflight):
                self._settle(inflight, None)  # its answer has ended, or nobody awaits it
            elif self._held.has_to_queue(inflight):
                self._hold(inflight)
            else:
                self._waiting.append(inflight)
        heads, last, settlements = self._held.take(self._awaited)
        for inflight, why in settlements:
            self._settle(inflight, why)
        size = len(self._waiting)
        if size > 1:
            size = _round_size([len(inflight.job.prompt) for inflight in self._waiting[:_ROUND]])
        in_flight, self._waiting = self._waiting[:size], self._waiting[size:]
        return heads + in_flight + last

    async def _gather(self) -> None:
        if self._waiting:
            if len(self._in_flight) > _BUSY:
                await asyncio.sleep(_GATHER_S)
            return
        try:
            async with asyncio.timeout(SHARED_LOOK_S if self.shares.is_shared else LOOK_EVERY_S):
                await self._try_held.wait()
        except TimeoutError:
            pass
        self._try_held.clear()

    async def _round(self, in_flight: list[InFlight]) -> None:
        if self.is_down:
            raise StoreDown
        in_flight = [inflight for inflight in in_flight if inflight.job.adapter is None or self._resolved(inflight)]
        if not in_flight:
            return
        round_ = PlacementRound(in_flight, self._pools, self._fleet.grids, self._fleet.weights)
        await self._look(round_, in_flight)
        placed_requests: list[InFlight] = []
        placings: list[Placing] = []
        predictions: list[Command] = []
        self._held.look_again(in_flight)
        for number, inflight in enumerate(in_flight):
            if number % _STRIDE == _STRIDE - 1:
                await asyncio.sleep(0)
            decision = self._decide(round_, inflight)
            if decision is not None:
                placings.append(decision[0])
                predictions += decision[1]
                placed_requests.append(inflight)
        others = self._ask(round_.asks) if round_.asks else []
        if self.shares.is_shared:
            self.shares.count(self._held.waiting())
            others += self.shares.tell()
        if self._fleet.index.is_apart:
            await self._write(placed_requests, placings, others)
            await self._fleet.index.ask(predictions)  # afterwards: no client waits for that server
        else:
            await self._write(placed_requests, placings, predictions + others)
        for pool, view in round_.views.items():
            self._routed[pool].shared(view.candidates)
        for inflight in placed_requests:
            if not self._awaited(inflight):
                self.stop_later(inflight.job)

    async def _look(self, round_: PlacementRound, in_flight: list[InFlight]) -> None:
        """Raises: StoreDown, also when the patience of one of them is over."""
        patience_s = self._held.patience_left_s(in_flight)
        if patience_s > _REDIS_S:  # a timeout costs 8 µs of each round
            await self._read(round_, in_flight)
            return
        try:
            async with asyncio.timeout(patience_s):
                await self._read(round_, in_flight)
        except TimeoutError:
            raise StoreDown from None

    async def _read(self, round_: PlacementRound, in_flight: list[InFlight]) -> None:
        """Reads all at once: one round trip. Raises: StoreDown."""
        if self._writer.is_away:
            await self._writer.check_broker()
        began = time.perf_counter()
        fleet, unheard = self._fleet.read(round_.prompts(), round_.grids), self.shares.unheard(in_flight)
        if unheard or round_.encodes:
            embeddings = self._embeddings.read(in_flight)
            round_.views, round_.encoded, _ = await asyncio.gather(fleet, embeddings, self.shares.hear(unheard))
        else:
            round_.views = await fleet
        FLEET_READ.observe(time.perf_counter() - began)

    def _decide(self, round_: PlacementRound, inflight: InFlight) -> tuple[Placing, list[Command]] | None:
        """The request's placing, and commands that predict what caches will have; None: it waits, or ends."""
        began, room = time.perf_counter(), ALL
        if time.monotonic() > inflight.ends_at:
            self._settle(inflight, DeadlineOver())
            return None
        try:
            room = self.shares.room(inflight, round_.seats)
            if round_.full and (inflight.line, room) in round_.full:
                raise Saturated
            places = round_.assign(inflight, self._rng, next(self._turns), room)
            encoders = inflight.attempt.encoders if round_.encodes else 0
            first, apart = round_.lease(places[encoders]).worker, self._writer.broker_apart
            placing = placement(
                self._keys, round_.grids, inflight, places, first, encoders=encoders, broker_apart=apart
            )
        except Saturated:
            self._wakes(round_, inflight)
            self._held.full(inflight.line)
            if room is not ALL:
                round_.full.add((inflight.line, room))
            self._hold(inflight)
            return None
        except NoWorker as exc:
            self._without_worker(inflight, exc, round_)
            return None
        except Exception as exc:  # noqa: BLE001 (one request that can't be placed doesn't stop the others)
            self._refuse(inflight, exc)
            return None
        self.shares.placed(inflight, places[encoders:], round_.lease(places[-1]))
        predictions, cached_tokens = list[Command](), -1
        for to in places[encoders:]:
            grid, lease = round_.grids[to.pool], round_.lease(to)
            if not lease.worker.kv_events:
                predictions += prediction(self._keys, self._pools[to.pool], grid, inflight, to, lease=lease)
            is_known = self._pools[to.pool].routing.policy == "kv" and round_.views[to.pool].looked_up
            cached_tokens = expected_tokens(inflight, places, lease, grid) if is_known else -1
            points = len(inflight.attempt.hashes(grid, inflight.job.weights or "")) // HASH_BYTES
            blocks, took = points * blocks_of_step(lease.worker), time.perf_counter() - began
            self._routed[to.pool].decided(to.cached, blocks, took, to.tiered.host, to.tiered.store)
        inflight.attempt = replace(inflight.attempt, expected=cached_tokens)
        return placing, predictions

    def audit(self, inflight: InFlight, end: Done) -> None:
        """Compares what it was expected to find in a cache with what it found."""
        if inflight.attempt.expected >= 0:
            self._routed[inflight.job.stages[-1].pool].audited(inflight.attempt.expected, end.cached_tokens)

    def _resolved(self, inflight: InFlight) -> bool:
        """The adapter that it wants is there, and it is of today's version; else its wait is over."""
        adapter = self._adapter(inflight.adapter_name)
        if adapter is None:
            self._settle(inflight, ModelNotFound(f"The model '{inflight.adapter_name}' is not served any more."))
            return False
        inflight.attempt = inflight.attempt.with_adapter(adapter)
        return True

    def _ask(self, asks: Collection[tuple[WorkerId, str]]) -> list[Command]:
        """Has workers load adapters for which requests wait."""
        now, commands = time.monotonic(), list[Command]()
        self._asked = {ask: at for ask, at in self._asked.items() if now - at < _ASK_AGAIN_S}
        for worker, adapter in asks:
            if (worker, adapter) not in self._asked:
                self._asked[worker, adapter] = now
                key = self._keys.commands(worker)
                commands += [("RPUSH", key, encode(LoadAdapter(adapter))), ("EXPIRE", key, COMMANDS_TTL_S)]
        return commands

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
        if isinstance(exc, WeightsChanged):
            self._refuse(inflight, exc)
            return
        if self._wakes(round_, inflight) or (asleep and inflight.job.attempt):
            self._hold(inflight, asleep or exc)
            return
        if asleep:
            self._refuse(inflight, asleep)
            return
        if (
            not round_.had_worker(inflight) and self._wire.is_steady()
        ):  # else Redis has just come back, and workers are renewing leases
            self._held.gone(inflight.line, exc)
        if self._held.may_wait(inflight):
            self._hold(inflight, exc)
        else:
            self._refuse(inflight, exc)

    async def _write(self, placements: list[InFlight], placings: list[Placing], others: list[Command]) -> None:
        """`placings`: those of `placements`, in order."""
        replies = await self._writer.write(placings, others)
        for inflight, placing, reply in zip(placements, placings, replies, strict=True):
            if inflight.job.attempt != placing.attempt:
                continue  # its worker gave it back before this reply came, and it waits to be placed anew
            if isinstance(reply, NotSent):
                self.stop_later(inflight.job)
                inflight.again(None, reply.code)
                self._hold(inflight, reply)
            elif isinstance(reply, StoreDown):
                inflight.attempt = inflight.attempt.unplaced()
                if inflight.job.attempt:
                    self._hold(inflight, reply)
                else:
                    self._refuse(inflight, reply)
            elif reply == SWAPPED:  # since this replica looked: it soon looks again
                inflight.attempt = inflight.attempt.unplaced()
                self._hold(inflight, NoWorker(f"The adapter '{inflight.adapter_name}' has just changed. Try again."))
            elif reply:
                self._settle(inflight, None)
            else:  # a worker's lease has ended: decide again
                self._fleet.forget([stage.pool for stage in inflight.job.stages])
                inflight.attempt = inflight.attempt.unplaced()
                self._waiting.append(inflight)
        for inflight in placements:
            if inflight.attempt.held_since and inflight.job.worker:
                self._try_held.set()  # a held request found room: there may be some for the next

    def _awaited(self, inflight: InFlight) -> bool:
        return self._in_flight.get(inflight.job.request) is inflight

    def _hold(self, inflight: InFlight, why: XylemError | None = None) -> None:
        if self.elsewhere(inflight, why):
            return
        least = self._held.push(inflight, why)
        if least is not None:
            self._settle(least, least.attempt.refused or Saturated(retry_after_s=self._retry_after_s))

    def _refuse(self, inflight: InFlight, error: Exception) -> None:
        """Ends its wait with an error, unless it goes to another cell."""
        if not (isinstance(error, XylemError) and self.elsewhere(inflight, error)):
            self._settle(inflight, error)

    def _settle(self, inflight: InFlight, error: Exception | None) -> None:
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
