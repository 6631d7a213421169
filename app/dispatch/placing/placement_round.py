"""The decisions of one round of placement. No I/O."""

from collections.abc import Callable, Mapping
from itertools import chain
from random import Random
from types import MappingProxyType
from typing import cast

from msgspec.structs import replace

from app.dispatch.fleet.pool_fleet import PoolView
from app.dispatch.inflight import Groups, InFlight, Line
from app.errors import AdapterFailed, AdapterLoading, NoWorker, RequestError, Saturated, WeightsChanged, XylemError
from app.ids import PoolId, WorkerId, place_id
from app.kv.blocks import HASH_BYTES, common_points
from app.kv.groups import blocks_of_step, grid_of, points_left
from app.messages.job import Stage
from app.messages.kinds import StageKind
from app.messages.lease import Grid, Lease
from app.messages.wanted import Adapter
from app.pools.schema import Pool, Routing
from app.routing.adapter_load import may_load
from app.routing.candidates import ALL, Ask, Candidate, Decision, Matches, Option, Placement, Room
from app.routing.cost import Fleet, PoolSpeeds
from app.routing.disagg import SplitPlacement, place_split
from app.routing.encoders import Encoded, Encoder, choose_encoders
from app.routing.lines import Lines
from app.routing.needs import is_seeded, unmet_need
from app.routing.peers import place_with_peer
from app.routing.policy import Part, can_prefill, can_serve, loaded, place
from app.routing.shortlist import home, shortlist
from app.store import clock

_MAX_PLACINGS = 5  # of one attempt
_RECENT = 32  # how many requests placed just before are compared for a common prefix


class PlacementRound:
    """Decides for some requests, by one read of the fleet and the placements made since."""

    def __init__(
        self,
        in_flight: list[InFlight],
        pools: Mapping[PoolId, Pool],
        grids: Mapping[PoolId, Grid],
        weights: Mapping[PoolId, str] = MappingProxyType({}),
    ) -> None:
        """`grids`: what prompts are hashed by. `weights`: the version that most of a pool have, if not its own."""
        self._pools, self._weights = pools, weights
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
        self._now = clock.now()
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

    def assign(self, inflight: InFlight, rng: Random, turn: int, room: Room = ALL) -> list[Placement]:
        """Calls `decide`, and sets the job's stages. Returns their placements, in order.

        Raises: NoWorker, Saturated.
        """
        if inflight.attempt.placings >= _MAX_PLACINGS:
            raise NoWorker("The workers of this model keep disappearing. Try again.")
        decisions = self.decide(inflight, rng, turn, room)
        places, stages = list[Placement](), list[Stage]()
        for kind, decision in decisions.items():
            to = decision.placement
            places.append(to)
            stages.append(Stage(kind, to.pool, to.worker, to.rank))
        weights = self.lease(places[-1]).state.weights
        if self.encodes:
            encoders = self._encoders(inflight, places[0], weights)
            places = [*(e.to for e in encoders), *places]
            stages = [*(Stage("encode_pictures", e.to.pool, e.to.worker, 0, e.media) for e in encoders), *stages]
        reasons = decisions if inflight.wishes.explain or inflight.log is not None else {}
        inflight.attempt = inflight.attempt.decided(stages, weights, reasons, behind=room.kept > 0)
        return places

    def _encoders(self, inflight: InFlight, first: Placement, weights: str) -> list[Encoder]:
        """The workers that encode its pictures before the first stage; none for pictures that are encoded already."""
        worker = self.lease(first).worker
        if not (inflight.wants_encoding and worker.embeddings) or worker.meets_at:  # two that meet begin at once
            return []
        places = [c for pool in inflight.encode_pools for c in self.views[pool].candidates]
        model = self._pools[inflight.encode_pools[0]].model
        cached_tokens = first.cached * worker.block_size
        encoders = choose_encoders(
            inflight.job.media, places, self.encoded, model, weights, now=self._now, cached_tokens=cached_tokens
        )
        for encoder in encoders:
            self._reserve(encoder.to, inflight)
        return encoders

    def decide(self, inflight: InFlight, rng: Random, turn: int, room: Room = ALL) -> dict[StageKind, Decision]:
        """Its stages in order: decode, after a prefill if another worker computes the prompt.

        Raises: NoWorker, Saturated (of the last group of pools); RequestError for what no engine supports;
        AdapterFailed.
        """
        job = inflight.job
        context = len(inflight.attempt.context)
        to_come = job.sampling.max_tokens - (context - len(job.prompt))
        work, holds = (context, True) if job.kind == "decode" else (job.work, False)
        if holds and job.media:
            work += job.encoder_tokens
        ask = Ask(
            work, to_come, job.sampling.n, inflight.wishes.session, job.aside, holds=holds, now=self._now, room=room
        )
        refusal: XylemError | None = None
        for group in inflight.groups:
            rules = self._pools[group[0]].routing
            if inflight.wishes.rules:
                rules = inflight.rules(rules)
            try:
                stages = self._shortly(inflight, ask, group, rules, rng)
                if stages is None:
                    stages = self._stages(inflight, ask, group, rules, rng, turn=turn)
            except NoWorker as exc:
                refusal = refusal if isinstance(refusal, Saturated) else exc
                continue
            except Saturated as exc:
                refusal = exc
                continue
            for stage in stages.values():
                self._reserve(stage.placement, inflight)
            return stages
        refusal = self._why_not(inflight, ask, refusal or NoWorker(), rng, turn)
        try:
            raise refusal
        finally:
            del refusal  # it refers to this frame, and so to all that was read for the round

    def _why_not(self, inflight: InFlight, ask: Ask, refusal: XylemError, rng: Random, turn: int) -> XylemError:
        """The reason why nobody takes it, if that says more than `refusal`. Raises: WeightsChanged."""
        if isinstance(refusal, NoWorker):
            self._check_weights(inflight)
            workers = [
                c.lease.worker for group in inflight.groups for pool in group for c in self.views[pool].candidates
            ]
            refusal = unmet_need(inflight.job, workers, inflight.params) or refusal
        if inflight.attempt.adapter is not None and isinstance(refusal, NoWorker):
            refusal = self._without_adapter(inflight, inflight.attempt.adapter, ask, rng, turn) or refusal
        return refusal

    def _shortly(
        self, inflight: InFlight, ask: Ask, group: tuple[PoolId, ...], rules: Routing, rng: Random
    ) -> dict[StageKind, Decision] | None:
        """The result of `_stages`, for many places without a look at each; None: each has to be looked at."""
        whole = inflight.attempt.handoff is None and not inflight.prefill_groups and not ask.aside
        if not whole or inflight.wishes.explain or rules.policy != "kv" or rules.temperature:
            return None
        for pool in group:
            if self.views[pool].lines is None or pool not in self._looked_up:
                return None
            if self._pools[pool].peers:  # a pair of places may be cheaper
                return None
        fleet = self._fleet(group)
        if fleet is None:
            return None
        options, fits = [], self._fits(inflight) or _takes_all
        for pool in group:
            view, homes = self.views[pool], []
            if ask.session is not None and rules.affinity_s > 0:
                own = home(ask.session, view.candidates, view.homes, fits, ask.room)
                if own is None:
                    return None
                homes.append(own)
            lines, matches = cast(Lines, view.lines), self._matches(inflight, pool)
            options += shortlist(
                ask, view.candidates, lines, matches, fleet, weight=rules.prefill_weight, fits=fits, also=homes
            )
        if not options:
            return None
        decision = place(ask, options, rules, rng, fleet=fleet)
        return {inflight.job.kind: decision}

    def _fleet(self, group: tuple[PoolId, ...]) -> Fleet | None:
        """The speeds of the pools together; None where there is no worker."""
        if group not in self._fleets:
            speeds: dict[PoolId, PoolSpeeds] = {}
            for pool in group:
                pool_speeds = self.views[pool].speeds
                if pool_speeds is not None and pool_speeds.places:
                    speeds[pool] = pool_speeds
            self._fleets[group] = Fleet.together(speeds) if speeds else None
        return self._fleets[group]

    def _stages(
        self, inflight: InFlight, ask: Ask, group: tuple[PoolId, ...], rules: Routing, rng: Random, turn: int
    ) -> dict[StageKind, Decision]:
        """Raises: NoWorker, Saturated, RequestError."""
        options, able = list[Option](), list[Option]()
        for pool in group:
            for option in self._options(inflight, pool):
                options.append(option)
                if option.candidate.lease.worker.computes:
                    able.append(option)
        part: Part = "all" if inflight.attempt.handoff is None else "decode"
        try:
            decision = place(ask, able, rules, rng, turn, part=part, fleet=self._fleet(group))
        except (NoWorker, Saturated):
            if len(able) == len(options):
                raise
            return self._only_split(inflight, ask, options, rules, rng, turn=turn)
        split = None
        if inflight.prefill_groups or self._pools[decision.placement.pool].peers:
            split = self._split(inflight, ask, decision, options, rules, rng=rng, turn=turn)
        if split is not None:
            return {"prefill": split.prefill, "decode": split.decode}
        return {inflight.job.kind: decision}

    def _only_split(
        self, inflight: InFlight, ask: Ask, decodes: list[Option], rules: Routing, rng: Random, turn: int
    ) -> dict[StageKind, Decision]:
        """The stages where decode workers compute no prompts.

        The split is needed also to continue an answer, and however short the prompt is.
        """
        if inflight.job.sampling.prompt_logprobs is not None:
            raise RequestError("This model's engines have no logprobs of a prompt.", param="prompt_logprobs")
        refusal: XylemError = NoWorker("No live worker computes this model's prompts. Try again.")
        for group in inflight.prefill_groups:
            prefills = [o for pool in group for o in self._options(inflight, pool) if o.candidate.lease.worker.meets_at]
            prefill_rules = inflight.rules(self._pools[group[0]].routing)
            try:
                here = place(ask, decodes, rules, rng, turn, part="decode")
                prefills = _of_weights(prefills, self.lease(here.placement).state.weights)
                return {"prefill": place(ask, prefills, prefill_rules, rng, turn, part="prefill"), "decode": here}
            except (NoWorker, Saturated) as exc:
                refusal = exc
        try:
            raise refusal
        finally:
            del refusal  # as in `decide`

    def _without_adapter(
        self, inflight: InFlight, adapter: Adapter, ask: Ask, rng: Random, turn: int
    ) -> XylemError | None:
        """Reason why nobody answers with its adapter. The worker that would do so for the least is asked to load it.

        Where the answering workers compute no prompts, a prefill worker has to have it too.
        """
        sides: list[tuple[Groups, Part]] = [(inflight.groups, "all")]
        if not any(lease.worker.computes for lease in self.leases(inflight)):
            sides.append((inflight.prefill_groups, "prefill"))
        was_asked = False
        for groups, part in sides:
            able = [o for group in groups for pool in group for o in self._options(inflight, pool, adapter=False)]
            able = [o for o in able if (can_prefill if part == "prefill" else can_serve)(o.candidate)]
            if not able:
                return None
            if any(adapter.versioned in o.candidate.lease.worker.adapters for o in able):
                continue
            try:
                options, rules = may_load(adapter, able), inflight.rules(self._pools[groups[0][0]].routing)
                self.asks.add((place(ask, options, rules, rng, turn, part=part).placement.worker, adapter.versioned))
            except (AdapterFailed, Saturated) as exc:
                return exc
            was_asked = True
        return AdapterLoading(f"The adapter '{adapter.name}' is being loaded. Try again.") if was_asked else None

    def _split(
        self,
        inflight: InFlight,
        ask: Ask,
        here: Decision,
        decodes: list[Option],
        rules: Routing,
        rng: Random,
        turn: int,
    ) -> SplitPlacement | None:
        weights = self.lease(here.placement).state.weights
        decodes = _of_weights(decodes, weights)
        for group in _prefills(inflight):
            prefills = _of_weights([o for pool in group for o in self._options(inflight, pool)], weights)
            prefill_rules = inflight.rules(self._pools[group[0]].routing)
            split = place_split(ask, here, prefills, decodes, (prefill_rules, rules), rng=rng, turn=turn)
            if split is not None:
                return split
        if self._pools[pool := here.placement.pool].peers and _may_split(inflight):
            return place_with_peer(ask, here, [o for o in decodes if o.candidate.lease.worker.pool == pool], rules, rng)
        return None

    def _check_weights(self, inflight: InFlight) -> None:
        """Raises: WeightsChanged when no worker, not even one that takes nothing now, can go on with its answer."""
        leases = self.leases(inflight)
        if inflight.weights is not None and leases and all(le.state.weights != inflight.weights for le in leases):
            raise WeightsChanged

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

    def _reserve(self, to: Placement, inflight: InFlight) -> None:
        view = self.views[to.pool]
        index = view.indices[place_id(to.worker, to.rank)]
        view.candidates[index] = loaded(view.candidates[index], to, aside=inflight.job.aside or to.lends)
        if not self._alone:
            self._placed.append((to, self._hashes(inflight, to.pool)))

    def _options(self, inflight: InFlight, pool: PoolId, *, adapter: bool = True) -> list[Option]:
        """The places that can go on with the request. `adapter`: and have its adapter."""
        matches, fits = self._matches(inflight, pool), self._fits(inflight, adapter=adapter)
        return [matches.option(i, c) for i, c in enumerate(self.views[pool].candidates) if fits is None or fits(c)]

    def _fits(self, inflight: InFlight, *, adapter: bool = True) -> Callable[[Candidate], bool] | None:
        """Whether a place has the request's weights, and supports its grammar, media and seed; None: each does.

        `adapter`: also whether it has the adapter.
        """
        job, sampling = inflight.job, inflight.job.sampling
        weights = inflight.weights if job.begun else None
        has_seed = sampling.seed is not None and is_seeded(sampling)
        kind = None if sampling.grammar is None else sampling.grammar.kind
        wanted_adapter = job.adapter if adapter else None
        kinds = {media.kind for media in job.media} if job.media else None
        if weights is None and kind is None and wanted_adapter is None and kinds is None and not has_seed:
            return None

        def fits(c: Candidate) -> bool:
            worker = c.lease.worker
            if weights is not None and c.lease.state.weights != weights:  # an answer goes on with its weights
                return False
            if kinds is not None and not kinds.issubset(worker.takes):
                return False
            has_adapter = wanted_adapter is None or wanted_adapter in worker.adapters
            return has_adapter and (kind is None or kind in worker.grammars) and (worker.seeds or not has_seed)

        return fits

    def _matches(self, inflight: InFlight, pool: PoolId) -> Matches:
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


def _takes_all(_: Candidate) -> bool:
    """Returns True: any place can go on with the request."""
    return True


def _of_weights(options: list[Option], weights: str) -> list[Option]:
    return [o for o in options if o.candidate.lease.state.weights == weights]


def _prefills(inflight: InFlight) -> Groups:
    """The pools that may compute its prompt for another worker; empty if that isn't needed.

    Never for aside requests: they could give way at one of the two workers only.
    """
    return inflight.prefill_groups if _may_split(inflight) else ()


def _may_split(inflight: InFlight) -> bool:
    """Whether one worker may compute its prompt, and another one decode."""
    job = inflight.job
    return inflight.attempt.may_split and not job.begun and inflight.attempt.handoff is None and not job.aside
