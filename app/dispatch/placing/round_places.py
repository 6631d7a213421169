"""The facts of one round of placement: its requests, the places, and what was reserved there since. No I/O."""

from collections.abc import Callable, Mapping
from itertools import chain
from types import MappingProxyType

from msgspec.structs import replace

from app.dispatch.fleet.pool_fleet import PoolView
from app.dispatch.inflight import Groups, InFlight, Line
from app.ids import PoolId, WorkerId, place_id
from app.kv.blocks import HASH_BYTES, common_points
from app.kv.groups import blocks_of_step, grid_of, points_left
from app.messages.lease import Grid, Lease
from app.pools.schema import Pool
from app.routing.candidates import Candidate, Matches, Option, Placement, Room
from app.routing.cost import Fleet, PoolSpeeds
from app.routing.encoders import Encoded
from app.routing.needs import is_seeded
from app.routing.policy import can_serve, loaded
from app.store import clock

_RECENT = 32  # how many requests placed just before are compared for a common prefix


class RoundPlaces:
    """A read of the fleet for some requests, and the placements made since."""

    def __init__(
        self,
        in_flight: list[InFlight],
        pools: Mapping[PoolId, Pool],
        grids: Mapping[PoolId, Grid],
        weights: Mapping[PoolId, str] = MappingProxyType({}),
    ) -> None:
        """`grids`: what prompts are hashed by. `weights`: the version that most of a pool have, if not its own."""
        self.pools, self._weights = pools, weights
        self.grids = dict(grids)  # of the whole round: its pools' workers may change meanwhile
        self._asking: dict[PoolId, dict[InFlight, int]] = {}  # by pool: requests, and their prompts' index in the read
        self._looked_up: set[PoolId] = set()  # pools whose caches prompts are looked up in
        self.encodes = False  # whether other workers may encode pictures of these
        for inflight in in_flight:
            encode_pools: tuple[PoolId, ...] = ()
            if inflight.encode_pools and inflight.wants_encoding:
                self.encodes, encode_pools = True, inflight.encode_pools
            for pool in chain(*inflight.groups, *inflight.prefill_groups, encode_pools):
                if pool not in self._asking:
                    self._asking[pool] = {}
                    if pools[pool].routing.policy == "kv" and pools[pool].role != "encode":
                        self._looked_up.add(pool)
                self._asking[pool][inflight] = len(self._asking[pool])
        self._alone = len(in_flight) == 1
        self._placed: list[tuple[Placement, bytes]] = []
        self.now = clock.now()
        self._fleets: dict[tuple[PoolId, ...], Fleet | None] = {}
        self._seats: dict[Groups, tuple[int, int]] = {}
        self.views: dict[PoolId, PoolView] = {}
        self.asks: set[tuple[WorkerId, str]] = set()  # to load an adapter for which a request waits
        self.full: set[tuple[Line, Room]] = set()  # lines whose requests find no more room, where tenants share it
        self.encoded: Encoded = {}  # pictures that workers have encoded

    def prompts(self) -> dict[PoolId, list[bytes]]:
        """The packed prompts to look up in each pool's caches; none if its policy ignores prefixes."""
        prompts: dict[PoolId, list[bytes]] = {}
        for pool, asking in self._asking.items():
            grid, weights = self.grids[pool], self._weights.get(pool, "")
            prompts[pool] = [f.attempt.hashes(grid, weights) for f in asking] if pool in self._looked_up else []
        return prompts

    def leases(self, inflight: InFlight, pool: PoolId | None = None) -> list[Lease]:
        """Leases of the workers that answer in its pools, or in one of them."""
        pools = [name for group in inflight.groups for name in group] if pool is None else [pool]
        return [c.lease for name in pools for c in self.views[name].candidates if c.rank == 0]

    def seats(self, inflight: InFlight) -> tuple[int, int]:
        """Seats of all places that answer in its pools, and the number of these places."""
        if (totals := self._seats.get(inflight.groups)) is None:
            places = [c for group in inflight.groups for pool in group for c in self.views[pool].candidates]
            seats = [c.lease.worker.max_running for c in places if can_serve(c)]
            totals = self._seats[inflight.groups] = sum(seats), len(seats)
        return totals

    def had_worker(self, inflight: InFlight) -> bool:
        """Whether its pools have a worker, or had one lately: then another one may start soon."""
        return any(self.views[pool].lately for group in inflight.groups for pool in group)

    def lease(self, to: Placement) -> Lease:
        """The chosen worker's lease."""
        view = self.views[to.pool]
        return view.candidates[view.indices[place_id(to.worker, to.rank)]].lease

    def fleet(self, group: tuple[PoolId, ...]) -> Fleet | None:
        """The speeds of the pools together; None where there is no worker."""
        if group not in self._fleets:
            speeds: dict[PoolId, PoolSpeeds] = {}
            for pool in group:
                pool_speeds = self.views[pool].speeds
                if pool_speeds is not None and pool_speeds.places:
                    speeds[pool] = pool_speeds
            self._fleets[group] = Fleet.together(speeds) if speeds else None
        return self._fleets[group]

    def reserve(self, to: Placement, inflight: InFlight) -> None:
        view = self.views[to.pool]
        index = view.indices[place_id(to.worker, to.rank)]
        view.candidates[index] = loaded(view.candidates[index], to, aside=inflight.job.aside or to.lends)
        if not self._alone:
            self._placed.append((to, self._hashes(inflight, to.pool)))

    def options(self, inflight: InFlight, pool: PoolId, *, adapter: bool = True) -> list[Option]:
        """The places that can go on with the request. `adapter`: and have its adapter."""
        matches, fits = self.matches(inflight, pool), self.fits(inflight, adapter=adapter)
        return [matches.option(i, c) for i, c in enumerate(self.views[pool].candidates) if fits is None or fits(c)]

    def fits(self, inflight: InFlight, *, adapter: bool = True) -> Callable[[Candidate], bool] | None:
        """Whether a place has the request's weights, and supports its grammar, beams, media and seed; None: each does.

        `adapter`: also whether it has the adapter.
        """
        job, sampling = inflight.job, inflight.job.sampling
        weights = inflight.weights if job.begun else None
        has_seed = sampling.seed is not None and is_seeded(sampling)
        kind = None if sampling.grammar is None else sampling.grammar.kind
        searches = sampling.beams is not None
        wanted_adapter = job.adapter if adapter else None
        kinds = {media.kind for media in job.media} if job.media else None
        if weights is None and kind is None and wanted_adapter is None and kinds is None and not (has_seed or searches):
            return None

        def fits(c: Candidate) -> bool:
            worker = c.lease.worker
            if weights is not None and c.lease.state.weights != weights:  # an answer goes on with its weights
                return False
            if (kinds is not None and not kinds.issubset(worker.takes)) or (searches and not worker.beams):
                return False
            has_adapter = wanted_adapter is None or wanted_adapter in worker.adapters
            return has_adapter and (kind is None or kind in worker.grammars) and (worker.seeds or not has_seed)

        return fits

    def matches(self, inflight: InFlight, pool: PoolId) -> Matches:
        if pool not in self._looked_up:
            return Matches()
        matches = self.views[pool].matches[self._asking[pool][inflight]]
        if self._placed and (coming := self._coming(inflight, pool)):
            both = {i: max(blocks, matches.coming.get(i, 0)) for i, blocks in coming.items()}
            matches = replace(matches, coming={**matches.coming, **both})
        return matches

    def _coming(self, inflight: InFlight, pool: PoolId) -> dict[int, int]:
        """The prompt's leading blocks that requests placed in this round will leave in a place's cache, by place."""
        mine, view, grid = self._hashes(inflight, pool), self.views[pool], self.grids[pool]
        blocks_by_place: dict[int, int] = {}
        if not mine:  # a prompt of less than a block
            return blocks_by_place
        first = mine[:HASH_BYTES]  # most prompts differ in it
        for to, hashes in self._placed[-_RECENT:]:
            if not hashes.startswith(first) or to.pool != pool or to.pulls:
                continue
            index = view.indices[place_id(to.worker, to.rank)]
            worker = view.candidates[index].lease.worker
            if grid_of(worker) == grid and (points := common_points(mine, hashes, points_left(worker))):
                blocks_by_place[index] = max(points * blocks_of_step(worker), blocks_by_place.get(index, 0))
        return blocks_by_place

    def _hashes(self, inflight: InFlight, pool: PoolId) -> bytes:
        return inflight.attempt.hashes(self.grids[pool], self._weights.get(pool, ""))
