"""The decisions of one round of placement, one after the other. No I/O."""

from collections.abc import Mapping
from random import Random

from msgspec.structs import replace

from app.dispatch.fleet_reader import PoolView
from app.dispatch.inflight import Groups, InFlight
from app.errors import AdapterFailed, NoWorker, RequestError, Saturated, XylemError
from app.ids import PoolId, WorkerId
from app.kv.blocks import common_blocks
from app.messages import Adapter, GrammarKind, Lease, Stage, StageKind
from app.pools import Pool, Routing
from app.routing.adapter_load import may_load
from app.routing.candidates import Ask, Candidate, Decision, Option, Placement
from app.routing.disagg import DisaggRules, place_apart
from app.routing.policy import Part, can_serve, place, reserve

_MAX_PLACINGS = 5  # of one attempt
_SIBLINGS = 32  # placed in this round just before, whose prefix may be this one's


class PlacementRound:
    """Some requests, the fleet as one read showed it, and what has been placed on it since. No I/O."""

    def __init__(self, in_flight: list[InFlight], pools: Mapping[PoolId, Pool]) -> None:
        self._pools = pools
        self._asking: dict[PoolId, dict[InFlight, int]] = {}  # with its number among those that ask this pool
        for inflight in in_flight:
            for pool in (p for group in (*inflight.groups, *_prefills(inflight)) for p in group):
                asking = self._asking.setdefault(pool, {})
                asking[inflight] = len(asking)
        self._alone = len(in_flight) == 1
        self._before: list[tuple[Placement, bytes]] = []
        self.views: dict[PoolId, PoolView] = {}
        self.asks: set[tuple[WorkerId, str]] = set()  # to load an adapter for which a request waits

    def prompts(self) -> dict[PoolId, list[bytes]]:
        """The packed prompts to ask each pool about: none where the policy doesn't look at prefixes."""
        return {
            pool: [f.hashes(self._pools[pool].block_size) for f in asking] if self._looks_at_prefixes(pool) else []
            for pool, asking in self._asking.items()
        }

    def assign(self, inflight: InFlight, rng: Random, turn: int) -> list[Placement]:
        """`decide`, written into its job: where each stage goes, in their order.

        Raises: NoWorker, Saturated.
        """
        if inflight.placings >= _MAX_PLACINGS:
            raise NoWorker("The workers of this model keep going away. Try again.")
        decisions = self.decide(inflight, rng, turn)
        inflight.placings += 1
        if inflight.wishes.explain:
            inflight.decisions = decisions
        places = {kind: decision.placement for kind, decision in decisions.items()}
        stages = [Stage(kind, to.pool, to.worker, to.rank) for kind, to in places.items()]
        inflight.job = replace(inflight.job, stages=stages)
        return list(places.values())

    def decide(self, inflight: InFlight, rng: Random, turn: int) -> dict[StageKind, Decision]:
        """Its stages in their order: decode, after a prefill if another worker computes the prompt.

        Raises: NoWorker, Saturated: what the last of its groups said; RequestError for what no engine here does,
        AdapterFailed.
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
            apart = self._apart(inflight, ask, decision, options, rules, rng, turn)
            stages: dict[StageKind, Decision] = {"encode" if encodes else "decode": decision}
            if apart is not None:
                stages = {"prefill": apart.prefill, "decode": apart.decode}
            for stage in stages.values():
                self._reserve(stage.placement, inflight)
            return stages
        grammar = inflight.job.sampling.grammar
        if grammar is not None and isinstance(refused, NoWorker):
            known = [_grammars(c) for group in inflight.groups for pool in group for c in self.views[pool].candidates]
            if any(known) and not any(grammar.kind in kinds for kinds in known):
                raise RequestError(f"This model's engines hold no answer to a format of the kind '{grammar.kind}'.")
            if known and not any(known):
                refused = NoWorker("No live worker of this model holds answers to a format. Try again.")
        if inflight.adapter is not None and isinstance(refused, NoWorker):
            refused = self._without_adapter(inflight, inflight.adapter, ask, rng, turn) or refused
        raise refused

    def _without_adapter(
        self, inflight: InFlight, adapter: Adapter, ask: Ask, rng: Random, turn: int
    ) -> XylemError | None:
        """Why nobody answers with its adapter. The worker that would do so for the least is asked to load it."""
        places = [o for group in inflight.groups for pool in group for o in self._places(inflight, pool)]
        here = [o for o in places if can_serve(o.candidate)]
        try:
            options = may_load(adapter, here)
            if not options:
                return None
            rules = inflight.rules(self._pools[inflight.groups[0][0]].routing)
            self.asks.add((place(ask, options, rules, rng, turn).placement.worker, adapter.versioned))
        except (AdapterFailed, Saturated) as exc:
            return exc
        return NoWorker(f"The adapter '{adapter.name}' is being loaded. Try again.")

    def _apart(
        self,
        inflight: InFlight,
        ask: Ask,
        here: Decision,
        decodes: list[Option],
        rules: Routing,
        rng: Random,
        turn: int,
    ) -> DisaggRules | None:
        for group in _prefills(inflight):
            prefills = [option for pool in group for option in self._options(inflight, pool)]
            prefill_rules = inflight.rules(self._pools[group[0]].routing)
            apart = place_apart(ask, here, prefills, decodes, (prefill_rules, rules), rng, turn)
            if apart is not None:
                return apart
        return None

    def had_worker(self, inflight: InFlight) -> bool:
        """Lately, or has one now; so the next one may come soon."""
        return any(self.views[pool].lately for group in inflight.groups for pool in group)

    def lease(self, to: Placement) -> Lease:
        """Of the worker that was chosen."""
        return next(c.lease for c in self.views[to.pool].candidates if c.lease.worker.id == to.worker)

    def _reserve(self, to: Placement, inflight: InFlight) -> None:
        view = self.views[to.pool]
        self.views[to.pool] = replace(view, candidates=reserve(view.candidates, to, aside=inflight.job.aside))
        if not self._alone:
            self._before.append((to, inflight.hashes(self._pools[to.pool].block_size)))

    def _options(self, inflight: InFlight, pool: PoolId) -> list[Option]:
        """The places whose engine can do what is asked: others would answer as if it had not been."""
        options, grammar = self._places(inflight, pool), inflight.job.sampling.grammar
        if (adapter := inflight.job.adapter) is not None:
            options = [o for o in options if adapter in o.candidate.lease.worker.adapters]
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
        """The blocks that requests placed a moment ago will leave in the caches of this pool."""
        mine = inflight.hashes(self._pools[pool].block_size)
        found: dict[tuple[WorkerId, int], int] = {}
        for to, hashes in self._before[-_SIBLINGS:]:
            if to.pool == pool and (blocks := common_blocks(mine, hashes)):
                place_ = to.worker, to.rank
                found[place_] = max(blocks, found.get(place_, 0))
        return found

    def _looks_at_prefixes(self, pool: PoolId) -> bool:
        return self._pools[pool].routing.policy == "kv"


def _grammars(candidate: Candidate) -> list[GrammarKind]:
    return candidate.lease.worker.grammars


def _prefills(inflight: InFlight) -> Groups:
    """The pools that may compute its prompt for another worker, if that is still to be done.

    Not of what gives way: it could do so at one of the two workers only.
    """
    job = inflight.job
    apart = inflight.apart and not job.begun and inflight.handoff is None and not job.aside
    return inflight.prefill_groups if apart else ()
