"""From a prompt to a worker's queue.

Requests are placed in rounds: one read of the fleet, one decision after the other, each seeing those before
it, and one write. A request that arrives during a round waits for the next. So a request costs two round
trips, and a burst of sixty costs two as well. Those that find no room are held until there is some.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from itertools import accumulate, chain, count
from random import Random

from app.dispatch.fleet_reader import FleetReader
from app.dispatch.inflight import InFlight, Line
from app.dispatch.placement_commands import guess, placement
from app.dispatch.placement_round import PlacementRound
from app.errors import DeadlineOver, NoWorker, Saturated, StoreDown, XylemError
from app.ids import PoolId, RequestId
from app.keys import Keys
from app.kv.blocks import HASH_BYTES
from app.messages import Job
from app.pools import Pool
from app.routing.waiting_line import WaitingLine
from app.store import Command, Wire
from app.telemetry import FLEET_READ, Routed, logger

log = logger(__name__)

# With this many in flight a round first waits a little for others to join it: a round costs the CPU of a sixth of
# a short request, and at such a load the wait is a small part of the time to the first token.
_BUSY, _GATHER_S = 32, 0.002
_HELD_EVERY_S = 0.05  # how often those that found no room look again; the end of a request wakes them as well
_HELD_AT_ONCE = 8  # the most urgent of them: where these find no room, the others don't either
_SILENT_S = 5.0  # after this `place` returns though the request is still held; what becomes of it is an event then
_ROUND = 64  # requests: while Redis matches a round's prompts it does nothing else
_ROUND_TOKENS = 2**18  # of their prompts: while they are hashed and written, no other request gets on


class Placer:
    """On the API's event loop."""

    def __init__(
        self,
        wire: Wire,
        keys: Keys,
        fleet: FleetReader,
        pools: Mapping[PoolId, Pool],
        retry_after_s: int,
        patience_s: float,
        in_flight: Mapping[RequestId, InFlight],
        stop: Callable[[list[Job]], Awaitable[None]],
        fail: Callable[[InFlight, XylemError], None],
    ) -> None:
        """`in_flight` are the requests that are awaited; `stop` ends what was placed when it no longer was.

        `fail` ends a request whose `place` has already returned.
        """
        self._wire, self._keys, self._fleet, self._pools = wire, keys, fleet, pools
        self._retry_after_s, self._patience_s = retry_after_s, patience_s
        self._in_flight, self._stop, self._fail = in_flight, stop, fail
        self._left: list[Job] = []  # older attempts, to be stopped where they may run
        self._rng = Random()  # noqa: S311 (spreads load, guards nothing)
        self._turns = count()
        self._waiting: list[InFlight] = []
        self._held: dict[Line, WaitingLine[InFlight]] = {}
        self._full: dict[Line, float] = {}  # when a line last heard that there are workers, all of them full
        # Lines that found no worker in their last round, and none that was there lately: nobody new waits in them.
        self._gone: dict[Line, NoWorker] = {}
        self._room = asyncio.Event()
        self._rounds: asyncio.Task[None] | None = None
        self._routed = {name: Routed(name) for name in pools}

    @property
    def held(self) -> int:
        """How many wait until there is room."""
        return sum(1 for f in self._in_flight.values() if f.held_since and not f.job.worker)

    async def place(self, inflight: InFlight) -> None:
        """Returns when it is on its worker's queue, nobody awaits it any more, or it has been held for a while.

        Raises: NoWorker, Saturated, StoreDown, DeadlineOver.
        """
        if inflight.placed is None or inflight.placed.done():  # else it came back before its placing was confirmed
            inflight.placed = asyncio.get_running_loop().create_future()
        self._waiting.append(inflight)
        self._wake()
        await inflight.placed

    def leave(self, job: Job) -> None:
        """Nobody awaits this attempt any more: it is stopped where it may run, as soon as Redis can be told."""
        if job.worker:
            self._left.append(job)
            self._wake()

    def room(self) -> None:
        """A request has ended somewhere: who is held may look again."""
        if self._held:
            self._room.set()

    def _wake(self) -> None:
        self._room.set()
        if self._rounds is None:
            self._rounds = asyncio.create_task(self._run_rounds())

    async def _run_rounds(self) -> None:
        try:
            while self._waiting or self._held or self._left:
                await self._gather()
                in_flight = self._next_or_none()
                try:
                    if in_flight:
                        await self._round(in_flight)
                except Exception as exc:  # noqa: BLE001 (whatever it was, no client waits for ever)
                    for inflight in in_flight:
                        if isinstance(exc, StoreDown) and self._wire.connected_before:
                            self._hold(inflight, exc)
                        elif not (inflight.job.worker and inflight.is_placed):  # else its worker has it
                            self._settle(inflight, exc)
                await self._stop_left()
        finally:
            self._rounds = None

    async def _stop_left(self) -> None:
        left = list(self._left)
        try:
            await self._stop(left)
        except StoreDown:  # after the next round, then
            return
        except Exception:  # what nobody stops runs on for nobody, and ends by itself
            log.exception("not_stopped", requests=len(left))
        del self._left[: len(left)]

    def _next_or_none(self) -> list[InFlight]:
        """`_next`; all whom it was about hear of it when that breaks, and the next round begins anew."""
        concerned = [*self._waiting, *chain.from_iterable(self._held.values())]
        try:
            return self._next()
        except Exception as exc:  # noqa: BLE001 (no client waits for ever)
            self._waiting, self._held = [], {}
            for inflight in concerned:
                self._settle(inflight, exc)
            return []

    def _next(self) -> list[InFlight]:
        """Who is to be placed now, the most urgent first: the heads of the lines, and those who just came to none."""
        came, self._waiting = self._waiting, []
        self._gone = {name: why for name, why in self._gone.items() if name in self._held}
        for inflight in sorted(came, key=_urgency):
            if not self._awaited(inflight):
                self._settle(inflight, None)  # its answer has its end, or nobody waits for one
            elif self._has_to_queue(inflight):
                self._hold(inflight)
            else:
                self._waiting.append(inflight)
        heads: list[InFlight] = []
        last: list[InFlight] = []
        now = time.monotonic()
        for name, line in self._held.items():
            full = self._full.get(name, 0.0)
            aside = name[1]
            if aside and now - full < _HELD_EVERY_S:
                continue  # each end of a request wakes the others, and these would look again each time
            gone, over = self._gone.get(name), dict[InFlight, XylemError]()
            for inflight in line:
                why = _given_up(inflight, gone, waited=now - max(inflight.held_since, full) > self._patience_s)
                if why is not None:
                    over[inflight] = why
                elif now - inflight.held_since > _SILENT_S:
                    self._settle(inflight, None)
            for inflight in line.drop(lambda f, over=over: f in over or not self._awaited(f)):  # type: ignore[misc]
                self._settle(inflight, over.get(inflight))
            (last if aside else heads).extend(line.take(_HELD_AT_ONCE))
        self._held = {name: line for name, line in self._held.items() if line}
        size = _round_size([len(inflight.job.prompt) for inflight in self._waiting[:_ROUND]])
        in_flight, self._waiting = self._waiting[:size], self._waiting[size:]
        return heads + in_flight + last

    def _has_to_queue(self, inflight: InFlight) -> bool:
        """Behind those who are held, unless these wait for a worker for which nobody new does.

        What gives way always does: a thousand of them cost each round of the others a few.
        """
        if inflight.job.aside and (inflight.job.attempt or self._most_held(inflight)):
            return True
        line = self._held.get(inflight.line)
        if not line:
            return False
        return inflight.job.attempt > 0 or inflight.line not in self._gone

    async def _gather(self) -> None:
        if self._waiting:
            if len(self._in_flight) > _BUSY:
                await asyncio.sleep(_GATHER_S)
            return
        try:
            async with asyncio.timeout(_HELD_EVERY_S):
                await self._room.wait()
        except TimeoutError:
            pass
        self._room.clear()

    async def _round(self, in_flight: list[InFlight]) -> None:
        round_ = PlacementRound(in_flight, self._pools)
        began = time.perf_counter()
        round_.views = await self._fleet.read(round_.prompts())
        FLEET_READ.observe(time.perf_counter() - began)
        placed: list[InFlight] = []
        commands: list[Command] = []
        guesses: list[Command] = []
        for inflight in in_flight if self._gone else ():
            self._gone.pop(inflight.line, None)
        for inflight in in_flight:
            began = time.perf_counter()
            if time.monotonic() > inflight.ends:
                self._settle(inflight, DeadlineOver())
                continue
            try:
                places = round_.assign(inflight, self._rng, next(self._turns))
                command = placement(self._keys, self._pools, inflight, places, round_.lease(places[0]).worker.meets_at)
            except Saturated:
                self._full[inflight.line] = time.monotonic()
                self._hold(inflight)
                continue
            except NoWorker as exc:
                self._without_worker(inflight, exc, lately=round_.had_worker(inflight))
                continue
            except Exception as exc:  # noqa: BLE001 (one request that can't be placed is no trouble of the others)
                self._settle(inflight, exc)
                continue
            commands.append(command)
            placed.append(inflight)
            for to in places:
                guesses += guess(self._keys, self._pools[to.pool], inflight, to, round_.lease(to))
                blocks = len(inflight.hashes(self._pools[to.pool].block_size)) // HASH_BYTES
                self._routed[to.pool].decided(to.cached, blocks, time.perf_counter() - began)
        await self._write(placed, commands + guesses)
        for pool, view in round_.views.items():
            self._routed[pool].shared([c.requests for c in view.candidates])
        for inflight in placed:
            if not self._awaited(inflight):
                self.leave(inflight.job)

    def _without_worker(self, inflight: InFlight, exc: NoWorker, *, lately: bool) -> None:
        """Waits for one if it was accepted, or if its model had one `lately`."""
        if not lately and self._wire.is_steady():  # before, workers write their leases anew
            self._gone[inflight.line] = exc
        if inflight.job.attempt or inflight.line not in self._gone:
            self._hold(inflight, exc)
        else:
            self._settle(inflight, exc)

    async def _write(self, placed: list[InFlight], commands: list[Command]) -> None:
        """The first of `commands` place those of `placed`."""
        if not commands:
            return
        attempts = [inflight.job.attempt for inflight in placed]
        try:
            replies = await self._wire.execute_each(commands)
        except StoreDown as exc:  # who knows what got through
            for inflight, attempt in zip(placed, attempts, strict=True):
                if inflight.job.attempt == attempt:
                    self.leave(inflight.job)
                    inflight.again(None)
                    self._hold(inflight, exc)
            return
        # What became of the guesses doesn't matter.
        for inflight, attempt, written in zip(placed, attempts, replies, strict=False):
            if inflight.job.attempt != attempt:
                continue  # its worker was quicker than this reply: it has come back, and waits to be placed anew
            if isinstance(written, StoreDown):
                inflight.unplace()
                if inflight.job.attempt:
                    self._hold(inflight, written)
                else:
                    self._settle(inflight, written)
            elif written:
                self._settle(inflight, None)
            else:  # the worker went between the two round trips: decide again
                inflight.unplace()
                self._waiting.append(inflight)
        if any(inflight.held_since and inflight.job.worker for inflight in placed):
            self._room.set()  # there was room: there may be for the next as well

    def _awaited(self, inflight: InFlight) -> bool:
        return self._in_flight.get(inflight.job.request) is inflight

    def _hold(self, inflight: InFlight, why: XylemError | None = None) -> None:
        """Until there is room, or for some time until there isn't that reason any more."""
        inflight.refused, inflight.placings = why, 0
        inflight.held_since = inflight.held_since or time.monotonic()
        line = self._held.get(inflight.line) or WaitingLine()
        least = line.push(inflight, *_urgency(inflight), self._most_held(inflight), stays=inflight.job.attempt > 0)
        if line:
            self._held[inflight.line] = line
        if least is not None:
            self._settle(least, least.refused or Saturated(retry_after_s=self._retry_after_s))

    def _most_held(self, inflight: InFlight) -> int:
        return max(self._pools[pool].busy.max_held for pool in inflight.groups[0])

    def _settle(self, inflight: InFlight, error: Exception | None) -> None:
        """Wakes who waits in `place`; who doesn't any more is told of an error by an event."""
        if error is not None and not isinstance(error, XylemError):
            job = inflight.job
            log.error("placement_failed", request=job.request, x_request_id=job.x_request_id, exc_info=error)
            error = XylemError()
        assert inflight.placed is not None
        if not inflight.placed.done():
            if error is None:
                inflight.placed.set_result(None)
            else:
                inflight.placed.set_exception(error)
        elif error is not None:
            self._fail(inflight, error)


def _round_size(prompts: list[int]) -> int:
    """How many requests are placed at once, by the tokens of their prompts; one at least."""
    return max(1, sum(total <= _ROUND_TOKENS for total in accumulate(prompts)))


def _urgency(inflight: InFlight) -> tuple[int, float]:
    """Of those that are as urgent, who was on a worker already goes first."""
    return inflight.job.priority, 0.0 if inflight.job.attempt else inflight.job.deadline


def _given_up(inflight: InFlight, gone: NoWorker | None, *, waited: bool) -> XylemError | None:
    """Why a request is held no longer, if so: no worker comes to its line, or it has waited as long as it may."""
    if gone is not None and not inflight.job.attempt and not isinstance(inflight.refused, StoreDown):
        return gone
    return inflight.refused if waited else None
