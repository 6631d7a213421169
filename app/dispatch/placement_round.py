"""The decisions of one round of placement. No I/O."""

from collections.abc import Mapping
from random import Random
from types import MappingProxyType

from msgspec.structs import replace

from app.dispatch.fleet_reader import PoolView
from app.dispatch.inflight import Groups, InFlight
from app.errors import NoWorker, RequestError, Saturated, WeightsChanged, XylemError
from app.ids import PoolId, WorkerId
from app.kv.blocks import common_blocks
from app.messages import GrammarKind, Lease, Stage, StageKind
from app.pools import Pool, Routing
from app.routing.candidates import Ask, Candidate, Decision, Option, Placement
from app.routing.disagg import SplitPlacement, place_split
from app.routing.policy import Part, place, reserve

_MAX_PLACINGS = 5  # of one attempt
_RECENT = 32  # how many requests placed just before are compared for a common prefix


class PlacementRound:
    """Decides for some requests, by one read of the fleet and the placements made since."""

    def __init__(
        self,
        in_flight: list[InFlight],
        pools: Mapping[PoolId, Pool],
        weights: Mapping[PoolId, str] = MappingProxyType({}),
    ) -> None:
        """`weights`: the version that most workers of a pool have, if it isn't its own."""
        self._pools, self._weights = pools, weights
        self._asking: dict[PoolId, dict[InFlight, int]] = {}  # by pool: requests, and their prompts' index in the read
        for inflight in in_flight:
            for pool in (p for group in (*inflight.groups, *_prefills(inflight)) for p in group):
                asking = self._asking.setdefault(pool, {})
                asking[inflight] = len(asking)
        self._alone = len(in_flight) == 1
        self._placed: list[tuple[Placement, bytes]] = []
        self.views: dict[PoolId, PoolView] = {}

    def prompts(self) -> dict[PoolId, list[bytes]]:
        """For each pool, the packed prompts to look up in its caches; none if its policy ignores prefixes."""
        return {
            pool: [self._hashes(f, pool) for f in asking] if self._looks_at_prefixes(pool) else []
            for pool, asking in self._asking.items()
        }

    def assign(self, inflight: InFlight, rng: Random, turn: int) -> list[Placement]:
        """Calls `decide`, and sets the job's stages. Returns their placements, in order.

        Raises: NoWorker, Saturated.
        """
        if inflight.placings >= _MAX_PLACINGS:
            raise NoWorker("The workers of this model keep disappearing. Try again.")
        decisions = self.decide(inflight, rng, turn)
        inflight.placings += 1
        if inflight.wishes.explain:
            inflight.decisions = decisions
        places = {kind: decision.placement for kind, decision in decisions.items()}
        stages = [Stage(kind, to.pool, to.worker, to.rank) for kind, to in places.items()]
        weights = self.lease(list(places.values())[-1]).state.weights
        inflight.job = replace(inflight.job, stages=stages, weights=weights)
        return list(places.values())

    def decide(self, inflight: InFlight, rng: Random, turn: int) -> dict[StageKind, Decision]:
        """Its stages in order: decode, after a prefill if another worker computes the prompt.

        Raises: NoWorker, Saturated (of the last group of pools); RequestError for a grammar that no engine supports.
        """
        job = inflight.job
        context = len(inflight.context)
        to_come = job.sampling.max_tokens - (context - len(job.prompt))
        encodes = job.inputs is not None
        ask = Ask(context, to_come, job.sampling.n, inflight.wishes.session, job.aside, holds=not encodes)
        part: Part = "all" if inflight.handoff is None else "decode"
        refused: XylemError = NoWorker()
        for group in inflight.groups:
            options = [option for pool in group for option in self._options(inflight, pool)]
            rules = inflight.rules(self._pools[group[0]].routing)
            try:
                decision = place(ask, options, rules, rng, turn, part=part)
            except NoWorker as exc:
                refused = refused if isinstance(refused, Saturated) else exc
                continue
            except Saturated as exc:
                refused = exc
                continue
            split = self._split(inflight, ask, decision, options, rules, rng, turn)
            stages: dict[StageKind, Decision] = {"encode" if encodes else "decode": decision}
            if split is not None:
                stages = {"prefill": split.prefill, "decode": split.decode}
            for stage in stages.values():
                self._reserve(stage.placement, inflight)
            return stages
        if isinstance(refused, NoWorker):
            self._check_weights(inflight)
        grammar = inflight.job.sampling.grammar
        if grammar is not None and isinstance(refused, NoWorker):
            known = [_grammars(c) for group in inflight.groups for pool in group for c in self.views[pool].candidates]
            if any(known) and not any(grammar.kind in kinds for kinds in known):
                raise RequestError(f"This model's engines hold no answer to a format of the kind '{grammar.kind}'.")
            if known and not any(known):
                refused = NoWorker("No live worker of this model holds answers to a format. Try again.")
        raise refused

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
            split = place_split(ask, here, prefills, decodes, (prefill_rules, rules), rng, turn)
            if split is not None:
                return split
        return None

    def _check_weights(self, inflight: InFlight) -> None:
        """Raises: WeightsChanged when no worker, not even one that takes nothing now, can go on with its answer."""
        leases = self.leases(inflight)
        if inflight.weights is not None and leases and all(le.state.weights != inflight.weights for le in leases):
            raise WeightsChanged

    def leases(self, inflight: InFlight, pool: PoolId | None = None) -> list[Lease]:
        """Of the workers that answer in its pools, or in one of them."""
        pools = [name for group in inflight.groups for name in group] if pool is None else [pool]
        return [c.lease for name in pools for c in self.views[name].candidates if c.rank == 0]

    def had_worker(self, inflight: InFlight) -> bool:
        """Whether its pools have a worker, or had one lately: then another one may start soon."""
        return any(self.views[pool].lately for group in inflight.groups for pool in group)

    def lease(self, to: Placement) -> Lease:
        """The chosen worker's lease."""
        return next(c.lease for c in self.views[to.pool].candidates if c.lease.worker.id == to.worker)

    def _reserve(self, to: Placement, inflight: InFlight) -> None:
        view = self.views[to.pool]
        self.views[to.pool] = replace(view, candidates=reserve(view.candidates, to, aside=inflight.job.aside))
        if not self._alone:
            self._placed.append((to, self._hashes(inflight, to.pool)))

    def _options(self, inflight: InFlight, pool: PoolId) -> list[Option]:
        """The places whose engine supports the request's grammar: others would ignore it."""
        options, grammar, weights = self._places(inflight, pool), inflight.job.sampling.grammar, inflight.weights
        if weights is not None:  # an answer goes on with the weights that began it
            options = _of_weights(options, weights)
        return options if grammar is None else [o for o in options if grammar.kind in _grammars(o.candidate)]

    def _places(self, inflight: InFlight, pool: PoolId) -> list[Option]:
        view = self.views[pool]
        if not self._looks_at_prefixes(pool):
            return [Option(c) for c in view.candidates]
        overlaps = view.overlaps[self._asking[pool][inflight]]
        coming = self._coming(inflight, pool)
        return [
            Option(c, o.cached, max(o.coming, coming.get((c.lease.worker.id, c.rank), 0)))
            for c, o in zip(view.candidates, overlaps, strict=True)
        ]

    def _coming(self, inflight: InFlight, pool: PoolId) -> dict[tuple[WorkerId, int], int]:
        """By place: the prompt's leading blocks that requests placed in this round will leave in its cache."""
        mine = self._hashes(inflight, pool)
        found: dict[tuple[WorkerId, int], int] = {}
        for to, hashes in self._placed[-_RECENT:]:
            if to.pool == pool and (blocks := common_blocks(mine, hashes)):
                place_ = to.worker, to.rank
                found[place_] = max(blocks, found.get(place_, 0))
        return found

    def _hashes(self, inflight: InFlight, pool: PoolId) -> bytes:
        return inflight.hashes(self._pools[pool].block_size, self._weights.get(pool, ""))

    def _looks_at_prefixes(self, pool: PoolId) -> bool:
        return self._pools[pool].routing.policy == "kv"


def _of_weights(options: list[Option], weights: str) -> list[Option]:
    return [o for o in options if o.candidate.lease.state.weights == weights]


def _grammars(candidate: Candidate) -> list[GrammarKind]:
    return candidate.lease.worker.grammars


def _prefills(inflight: InFlight) -> Groups:
    """The pools that may compute its prompt for another worker; empty if that isn't needed.

    Never for aside requests: they could give way at one of the two workers only.
    """
    job = inflight.job
    may_split = inflight.may_split and not job.begun and inflight.handoff is None and not job.aside
    return inflight.prefill_groups if may_split else ()
