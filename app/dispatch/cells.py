"""Other cells: complete deployments that take requests of this process when its own, the home cell, has no room.

A request is in one cell at a time. It goes to another one before it has a worker, and comes back when it is refused
there, or when it loses its worker; each attempt has its number, so that events of an older one are ignored.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from random import Random
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from app.dispatch.answering.dispatcher import Dispatcher
from app.dispatch.answering.liveness import LivenessWatch
from app.dispatch.answering.token_inbox import TokenInbox
from app.dispatch.fleet.cell import Cell
from app.dispatch.inflight import InFlight
from app.dispatch.placing.placer import Placer
from app.errors import DeadlineOver, NoWorker, Saturated, StoreDown, XylemError
from app.ids import HOME, CellId, PoolId
from app.pools.schema import Pool
from app.routing.cells import CellLoad, choose
from app.running.loops import keep
from app.store.wire_version import note
from app.telemetry import CELL_REACHABLE, CELL_REQUESTS, CELL_SENT, logger

log = logger(__name__)

_READ_EVERY_S = 1.0
_AGAIN_AFTER_S = 1.0  # a cell that has refused a request is asked for it again
_LOOK_EVERY_S = 0.25


class Runs(Protocol):
    async def run(self) -> None: ...


class CellState(Struct, frozen=True):
    reachable: bool
    requests: int  # of this process


class OtherCell:
    """A cell, the parts that place there and receive from there, and its load as last read."""

    def __init__(
        self,
        cell: Cell,
        dispatcher: Dispatcher,
        pools: Mapping[PoolId, Pool],
        back: Callable[[InFlight, XylemError | None], bool],
    ) -> None:
        """`back` takes a request back that is refused there."""
        self.cell, self._pools = cell, list(pools)
        self.placer = Placer(
            cell.wire,
            cell.keys,
            cell.fleet,
            pools,
            retry_after_s=0,
            patience_s=0.0,
            in_flight=dispatcher.in_flight,
            fail=dispatcher.fail,
            adapter=_no_adapter,
            wake_pool=_wakes_nobody,
            token_redis=cell.token_redis,
            broker=cell.broker,
            cell=cell.name,
            api=dispatcher.api,
        )
        self.placer.queue.elsewhere = back
        self._inbox = TokenInbox(
            cell.token_wire, cell.keys, dispatcher.api, dispatcher.deliver, partial(dispatcher.worker_lost, died=False)
        )
        self.watch = LivenessWatch(
            cell.wire,
            cell.keys,
            dispatcher,
            self._inbox,
            cell.fleet,
            pools=pools,
            adapters=None,
            intervals=cell.settings.intervals,
            broker=cell.broker,
            cell=cell.name,
        )
        self._loads: dict[PoolId, CellLoad] = {}
        self._sent = 0  # requests, since these were read
        self._strangers: list[int] = []  # wire versions there that aren't neighbours of ours
        self.parts: tuple[Runs, ...] = (self, self._inbox, self.watch, self.placer)

    @property
    def is_reachable(self) -> bool:
        return self.watch.looked and self.watch.failing_since is None and self._inbox.subscribed.is_set()

    def load(self, pools: Collection[PoolId]) -> CellLoad:
        """The load of these pools; no room if the cell can't be reached."""
        if not self.is_reachable:
            return CellLoad()
        none = CellLoad()
        return sum((self._loads.get(pool, none) for pool in pools), none).sent(self._sent)

    def count_sent(self) -> None:
        self._sent += 1
        CELL_SENT.labels(self.cell.name).inc()

    async def run(self) -> None:
        """Reads its load until cancelled."""
        await keep("cell_not_read", self._look, _READ_EVERY_S, cell=self.cell.name)

    async def _look(self) -> None:
        """Raises: StoreDown."""
        try:
            await self._read()
        except Exception:
            self._loads = {}
            raise

    async def _read(self) -> None:
        """Raises: StoreDown."""
        (strangers,) = await self.cell.wire.execute([note(self.cell.settings)])
        if strangers != self._strangers:
            self._strangers = strangers
            log.error("cell_of_another_version", cell=self.cell.name, versions=strangers)
        views = await self.cell.fleet.read({} if strangers else {pool: [] for pool in self._pools})
        self._loads = {pool: CellLoad.of(view.candidates) for pool, view in views.items()}
        self._sent = 0


def _no_adapter(_name: str) -> None:
    """Requests for adapters stay in their cell."""


def _wakes_nobody(_pool: PoolId) -> None:
    """Other cells' own replicas wake their workers."""


class Cells:
    """All cells of this process."""

    def __init__(
        self,
        home: LivenessWatch,
        dispatcher: Dispatcher,
        pools: Mapping[PoolId, Pool],
        others: Sequence[Cell] = (),
        lost_after_s: float = 10.0,
    ) -> None:
        """`lost_after_s`: how long a cell's Redis has to be unreachable before requests there go on elsewhere."""
        self._home, self._dispatcher, self._lost_after_s = home, dispatcher, lost_after_s
        self._others = {cell.name: OtherCell(cell, dispatcher, pools, self._back) for cell in others}
        self._told: dict[CellId, bool] = {}
        self._rng = Random()  # noqa: S311 (spreads load, guards nothing)
        if others:
            dispatcher.placer.queue.elsewhere = self._elsewhere
        for name, other in self._others.items():
            dispatcher.placers[name] = other.placer
        for name in self.states():
            CELL_REACHABLE.labels(name).set_function(partial(self._is_reachable, name))
            CELL_REQUESTS.labels(name).set_function(lambda name=name: self.states()[name].requests)  # type: ignore[misc]

    @property
    def parts(self) -> list[Runs]:
        """The parts to be run."""
        return [part for other in self._others.values() for part in other.parts] + [self] if self._others else []

    def states(self) -> dict[CellId, CellState]:
        """The states of all cells; empty if there is only the home cell."""
        if not self._others:
            return {}
        count = dict.fromkeys((HOME, *self._others), 0)
        for inflight in self._dispatcher.in_flight.values():
            count[inflight.attempt.cell] += 1
        return {name: CellState(self._is_reachable(name), requests) for name, requests in count.items()}

    def load(self, pools: Collection[PoolId]) -> CellLoad:
        """The load of the other cells that can be reached, together."""
        return sum((other.load(pools) for other in self._others.values()), CellLoad())

    async def run(self) -> None:
        """Looks at the cells until cancelled."""
        await keep("cells_not_looked_at", lambda: self._look(time.monotonic()), _LOOK_EVERY_S, later=True)

    def _look(self, now: float) -> None:
        """Tells which cells have become unreachable or reachable; takes requests out of lost ones."""
        for name in (HOME, *self._others):
            reachable = self._is_reachable(name)
            self._dispatcher.placers[name].is_down = not reachable
            if reachable != self._told.get(name, name == HOME):
                (log.info if reachable else log.error)("cell_found" if reachable else "cell_lost", cell=name)
                self._told[name] = reachable
            since = self._watch(name).failing_since
            if since is not None and now - since > self._lost_after_s:
                self._leave(name, now)

    def _leave(self, cell_id: CellId, now: float) -> None:
        """The requests there go on in other cells, if one may have room."""
        moves = Counter[CellId]()
        for inflight in self._dispatcher.in_cell(cell_id):
            if not inflight.is_placed or not inflight.job.worker:
                continue
            to = HOME if self._is_reachable(HOME) else self._chosen(inflight, None, now, moves)
            if to is not None:  # else its worker goes on when that Redis is back
                moves[to] += 1
                self._dispatcher.lost(inflight)
        if moves:
            log.error("cell_left", cell=cell_id, requests=moves.total())

    def _elsewhere(self, inflight: InFlight, why: XylemError | None) -> bool:
        """Sends a request that is refused at home to another cell, if one may have room; whether it has."""
        cell = self._chosen(inflight, why, time.monotonic(), {})
        if cell is None:
            return False
        self._others[cell].count_sent()
        self._move(inflight, cell)
        return True

    def _chosen(
        self, inflight: InFlight, why: XylemError | None, now: float, coming: Mapping[CellId, int]
    ) -> CellId | None:
        """`coming`: requests that are about to be sent."""
        # Adapters are wanted cell by cell, pictures are in the Redis of this one; aside requests have time.
        if inflight.job.adapter is not None or inflight.job.media or inflight.job.aside:
            return None
        if why is not None and not isinstance(why, Saturated | NoWorker | StoreDown):
            return None
        pools = [pool for group in inflight.groups for pool in group]
        refusing_cells = {cell for cell, at in inflight.refused_in.items() if now - at < _AGAIN_AFTER_S}
        others = {name: other for name, other in self._others.items() if name not in refusing_cells}
        return choose({name: other.load(pools).sent(coming.get(name, 0)) for name, other in others.items()}, self._rng)

    def _back(self, inflight: InFlight, why: XylemError | None) -> bool:
        """Sends a request that is refused in another cell home, unless no cell would take it."""
        if isinstance(why, DeadlineOver):
            return False
        inflight.refused_in[inflight.attempt.cell] = time.monotonic()
        self._move(inflight, HOME)
        return True

    def _move(self, inflight: InFlight, to: CellId) -> None:
        inflight.attempt = replace(inflight.attempt.without_handoff(), placings=0)  # KV stays in its cell
        self._dispatcher.placers[to].take(inflight)

    def _watch(self, cell: CellId) -> LivenessWatch:
        return self._home if cell == HOME else self._others[cell].watch

    def _is_reachable(self, cell: CellId) -> bool:
        return self._home.failing_since is None if cell == HOME else self._others[cell].is_reachable
