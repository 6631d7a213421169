"""The decisions of one round of placement. No I/O."""

from random import Random
from typing import cast

from app.dispatch.inflight import Groups, InFlight
from app.dispatch.placing.round_places import RoundPlaces
from app.errors import AdapterFailed, AdapterLoading, NoWorker, RequestError, Saturated, WeightsChanged, XylemError
from app.ids import PoolId
from app.messages.job import Stage
from app.messages.kinds import StageKind
from app.messages.wanted import Adapter
from app.pools.schema import Routing
from app.routing.adapter_load import may_load
from app.routing.candidates import ALL, Ask, Candidate, Decision, Option, Placement, Room
from app.routing.disagg import SplitPlacement, place_split
from app.routing.encoders import Encoder, choose_encoders
from app.routing.lines import Lines
from app.routing.needs import unmet_need
from app.routing.peers import place_with_peer
from app.routing.policy import Part, can_prefill, can_serve, place
from app.routing.shortlist import home, shortlist

_MAX_PLACINGS = 5  # of one attempt


class PlacementRound(RoundPlaces):
    """Decides for some requests."""

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
        if not (inflight.wants_encoding and worker.embeddings):
            return []
        places = [c for pool in inflight.encode_pools for c in self.views[pool].candidates]
        model = self.pools[inflight.encode_pools[0]].model
        cached_tokens = first.cached * worker.block_size
        encoders = choose_encoders(
            inflight.job.media, places, self.encoded, model, weights, now=self.now, cached_tokens=cached_tokens
        )
        for encoder in encoders:
            self.reserve(encoder.to, inflight)
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
            work, to_come, job.sampling.seats, inflight.wishes.session, job.aside, holds=holds, now=self.now, room=room
        )
        refusal: XylemError | None = None
        for group in inflight.groups:
            rules = self.pools[group[0]].routing
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
                self.reserve(stage.placement, inflight)
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
            if self.pools[pool].peers:  # a pair of places may be cheaper
                return None
        fleet = self.fleet(group)
        if fleet is None:
            return None
        options, fits = [], self.fits(inflight) or _takes_all
        for pool in group:
            view, homes = self.views[pool], []
            if ask.session is not None and rules.affinity_s > 0:
                own = home(ask.session, view.candidates, view.homes, fits, ask.room)
                if own is None:
                    return None
                homes.append(own)
            lines, matches = cast(Lines, view.lines), self.matches(inflight, pool)
            options += shortlist(
                ask, view.candidates, lines, matches, fleet, weight=rules.prefill_weight, fits=fits, also=homes
            )
        if not options:
            return None
        decision = place(ask, options, rules, rng, fleet=fleet)
        return {inflight.job.kind: decision}

    def _stages(
        self, inflight: InFlight, ask: Ask, group: tuple[PoolId, ...], rules: Routing, rng: Random, turn: int
    ) -> dict[StageKind, Decision]:
        """Raises: NoWorker, Saturated, RequestError."""
        options, able = list[Option](), list[Option]()
        for pool in group:
            for option in self.options(inflight, pool):
                options.append(option)
                if option.candidate.lease.worker.computes:
                    able.append(option)
        part: Part = "all" if inflight.attempt.handoff is None else "decode"
        try:
            decision = place(ask, able, rules, rng, turn, part=part, fleet=self.fleet(group))
        except (NoWorker, Saturated):
            if len(able) == len(options):
                raise
            return self._only_split(inflight, ask, options, rules, rng, turn=turn)
        split = None
        if inflight.prefill_groups or self.pools[decision.placement.pool].peers:
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
            prefills = [o for pool in group for o in self.options(inflight, pool) if o.candidate.lease.worker.meets_at]
            prefill_rules = inflight.rules(self.pools[group[0]].routing)
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
            able = [o for group in groups for pool in group for o in self.options(inflight, pool, adapter=False)]
            able = [o for o in able if (can_prefill if part == "prefill" else can_serve)(o.candidate)]
            if not able:
                return None
            if any(adapter.versioned in o.candidate.lease.worker.adapters for o in able):
                continue
            try:
                options, rules = may_load(adapter, able), inflight.rules(self.pools[groups[0][0]].routing)
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
            prefills = _of_weights([o for pool in group for o in self.options(inflight, pool)], weights)
            prefill_rules = inflight.rules(self.pools[group[0]].routing)
            split = place_split(ask, here, prefills, decodes, (prefill_rules, rules), rng=rng, turn=turn)
            if split is not None:
                return split
        if self.pools[pool := here.placement.pool].peers and _may_split(inflight):
            return place_with_peer(ask, here, [o for o in decodes if o.candidate.lease.worker.pool == pool], rules, rng)
        return None

    def _check_weights(self, inflight: InFlight) -> None:
        """Raises: WeightsChanged when no worker, not even one that takes nothing now, can go on with its answer."""
        leases = self.leases(inflight)
        if inflight.weights is not None and leases and all(le.state.weights != inflight.weights for le in leases):
            raise WeightsChanged


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
    if job.sampling.beams is not None:  # each step of its search computes a prompt
        return False
    return inflight.attempt.may_split and not job.begun and inflight.attempt.handoff is None and not job.aside
