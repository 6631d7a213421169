"""Shares the engines of each model among tenants, with the other API replicas: `tenant_service.py` decides.

Where one tenant alone uses a model, this is told and heard four times a second, beside the requests. Where several do,
each round of placement reads and writes it, together with its own commands.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter

from app.dispatch.inflight import ATTEMPTS, InFlight, Line
from app.dispatch.placing.presence_record import FRESH_S, PresenceRecord
from app.ids import ApiId, CellId, PoolId, RequestId, TenantId
from app.keys import Keys
from app.messages.events import Done
from app.messages.lease import Lease
from app.pools.schema import Pool
from app.routing.candidates import ALL, Placement, Room
from app.routing.fair_line import FairLine
from app.routing.fair_order import Flow, priority_class
from app.routing.tenant_service import Charge, Presence, SeatCost, TenantService
from app.running.loops import keep
from app.store import Command, Wire, clock
from app.tenants.records import NOBODY

_TELL_S = 0.25  # how often it is told and heard without rounds
_STALE_S = 1.0  # what was heard longer ago is heard anew before a request is placed
_YIELD_S = 0.1  # so long a flow waits for those of other replicas, which may be unable to use the room
_COUNT_S, _COUNT_SHARE = 0.02, 0.02  # requests are counted not more often, and for no more of the time
_PATIENCE_S = 0.3  # so long a request waits until others step aside for it
_STEPS = 3  # so often a request steps aside


class TenantShares:
    """The tenants' shares of the engines of one cell."""

    def __init__(
        self,
        wire: Wire,
        keys: Keys,
        pools: Mapping[PoolId, Pool],
        in_flight: Mapping[RequestId, InFlight],
        cell: CellId,
        api: ApiId,
        step_aside: Callable[[InFlight], None] | None = None,
    ) -> None:
        """`in_flight`: the awaited requests, of all cells. `step_aside` has one give up its seat, and go on later."""
        self._wire, self._keys, self._in_flight, self._cell = wire, keys, in_flight, cell
        self._models = {name: pool.model for name, pool in pools.items()}
        self._presences = PresenceRecord(api)
        self._services: dict[str, TenantService] = {}  # of models that were asked for
        self._heard: dict[str, float] = {}  # monotonic, here and below
        self._used: dict[str, float] = {}
        self._told = 0  # how often changes were taken, to tell them
        self._yielded: dict[tuple[str, Flow], float] = {}  # since when it yields
        self._count_again = 0.0
        self._give_up_seat = step_aside

    @property
    def is_shared(self) -> bool:
        return any(map(attrgetter("is_shared"), self._services.values()))

    def of(self, inflight: InFlight) -> TenantService:
        return self._of_model(self._model(inflight))

    def yields(self, inflight: InFlight) -> bool:
        """Whether it has to wait, though no request waits here."""
        return _counts(inflight) and self._yields(self._model(inflight), flow_of(inflight))

    def next_of(self, line: Line, waiting: FairLine[InFlight], most: int) -> list[InFlight]:
        """The requests of a line of online requests that are to be tried now."""
        model = self._models[line[0][0][0]]
        service = self._of_model(model)
        if not service.is_shared:
            return waiting.take(most)
        return waiting.take(most, service.start, service.step, service.owed, lambda flow: self._yields(model, flow))

    def room(self, inflight: InFlight, seats: Callable[[InFlight], tuple[int, int]]) -> Room:
        """`seats`: of all places that may answer it, and the number of places."""
        tenant, service = inflight.tenant, self._services.get(self._models[inflight.groups[0][0]])
        if inflight.job.aside or service is None or service.active.keys() <= {tenant.name}:  # nobody else uses it
            return ALL
        return service.room(flow_of(inflight), tenant.weight, *seats(inflight))

    def placed(self, inflight: InFlight, places: Sequence[Placement], last: Lease) -> None:
        """Charges it, once. `last`: of the worker that answers."""
        if inflight.charge is not None or not _counts(inflight):
            return
        model, flow, job = self._model(inflight), flow_of(inflight), inflight.job
        service = self._of_model(model)
        cost = SeatCost.of(sum(to.tokens for to in places), last.speeds, last.worker.max_running)
        had, n = _tokens(inflight), job.sampling.seats
        answer = service.expected_answer(flow.tenant, job.sampling.max_tokens) * n - had if job.kind == "decode" else 0
        seconds = cost.seconds(max(0.0, answer))
        inflight.charge = Charge(flow, cost, seconds, had)
        service.charge(flow, inflight.tenant.weight, seconds, clock.now())
        self._yielded.pop((model, flow), None)
        self._used[model] = time.monotonic()

    def ended(self, inflight: InFlight, end: Done | None) -> None:
        """Corrects what it was charged by what it has really cost."""
        charge, inflight.charge = inflight.charge, None
        if charge is None:
            return
        service, job = self.of(inflight), inflight.job
        answer_tokens = max(0, _tokens(inflight) - charge.had)
        prompt = None if end is None or job.kind != "decode" else max(1, len(job.prompt) - end.cached_tokens)
        if end is not None and job.kind == "decode":
            service.answered(charge.flow.tenant, answer_tokens // max(1, job.sampling.seats))
        cost_s = charge.cost.seconds(answer_tokens, prompt) if job.worker else 0.0
        service.correct(charge.flow, inflight.tenant.weight, cost_s - charge.seconds, clock.now())
        self._used[self._model(inflight)] = time.monotonic()

    def count(self, waiting: Iterable[InFlight]) -> None:
        """Counts what each tenant has here, now and then. `waiting`: for room."""
        now = time.monotonic()
        if now < self._count_again:
            return
        running: dict[tuple[str, TenantId], int] = {}
        weights: dict[TenantId, float] = {}
        for f in self._in_flight.values():
            if f.attempt.cell == self._cell and f.job.worker and not f.job.aside:
                which = self._model(f), f.tenant.name
                running[which] = running.get(which, 0) + 1
                weights[f.tenant.name] = f.tenant.weight
        classes: dict[tuple[str, TenantId], set[int]] = {}
        wants: dict[tuple[str, TenantId], int] = {}
        counts = Counter[tuple[str, TenantId]]()
        for f in waiting:
            flow = flow_of(f)
            which = self._model(f), flow.tenant
            classes.setdefault(which, set()).add(flow.priority_class)
            counts[which] += 1
            wants[which] = wants.get(which, 0) + (now - f.attempt.held_since > _PATIENCE_S)
            weights[flow.tenant] = f.tenant.weight
        own: dict[str, list[Presence]] = {model: [] for model in self._services}
        for model, tenant in running.keys() | classes.keys():
            which = model, tenant
            presence = Presence(
                tenant,
                weights[tenant],
                running.get(which, 0),
                sorted(classes.get(which, ())),
                wants.get(which, 0),
                held=counts[which],
            )
            self._of_model(model)
            own.setdefault(model, []).append(presence)
        for model, presences in own.items():
            self._services[model].present(presences, clock.now())
        took = time.monotonic() - now
        self._count_again = now + max(_COUNT_S, took / _COUNT_SHARE)

    def unheard(self, in_flight: Iterable[InFlight]) -> list[str]:
        """The models of which has to be heard before these are placed."""
        models = set[str]()
        for f in in_flight:
            if _counts(f):
                models.add(self._model(f))
        if not models:
            return []
        now = time.monotonic()
        return [m for m in models if self._of_model(m).is_shared or now - self._heard.get(m, -_STALE_S) >= _STALE_S]

    def tell(self) -> list[Command]:
        """Commands that tell other replicas what they have to hear at once: none, unless tenants share a model."""
        shared_models = [model for model, service in self._services.items() if service.is_shared]
        return [self._telling(model) for model in shared_models if self._is_used(model)]

    async def run(self, waiting: Callable[[], Iterable[InFlight]]) -> None:
        """Tells and hears, until cancelled. `waiting`: as of `count`."""

        async def turn() -> None:
            self._count_again = 0.0
            self.count(waiting())
            await self._exchange()
            self._step_aside()

        await keep("tenants_not_told", turn, _TELL_S, later=True)

    async def _exchange(self) -> None:
        models = [model for model in self._services if self._is_used(model)]
        await self._wire.execute([self._telling(model) for model in models])
        await self.hear(models, forget=True)

    def _step_aside(self) -> None:
        """Has the newest of one tenant's long answers go on later, where these hold all seats."""
        for model, service in self._services.items():
            excess = service.steps_aside() if self._give_up_seat is not None else None
            if excess is None or self._give_up_seat is None:
                continue
            tenant, count = excess
            able = [f for f in self._in_flight.values() if f.tenant.name == tenant and self._may_step_aside(f, model)]
            able.sort(key=lambda f: (f.has_output, -f.attempt.placed_at))
            for f in able[:count]:
                self._give_up_seat(f)

    def _may_step_aside(self, f: InFlight, model: str) -> bool:
        here = f.attempt.cell == self._cell and self._model(f) == model and f.is_placed
        simple = f.job.kind == "decode" and len(f.job.stages) == 1 and not f.job.aside
        return here and simple and f.job.attempt % ATTEMPTS < _STEPS

    def _is_used(self, model: str) -> bool:
        return bool(self._services[model].own) or time.monotonic() - self._used.get(model, 0.0) < FRESH_S

    def _telling(self, model: str) -> Command:
        self._told += 1
        return self._presences.telling(self._keys.service(model), self._of_model(model))

    async def hear(self, models: Sequence[str], *, forget: bool = False) -> None:
        """Reads what all replicas have told. `forget`: also removes what nobody needs any more. Raises: StoreDown."""
        if not models:
            return
        tell_count = self._told
        replies = await self._wire.execute([("HGETALL", self._keys.service(model)) for model in models])
        if tell_count != self._told:
            return  # Redis has heard of more by now than it says here: the next time
        old: list[Command] = []
        for model, reply in zip(models, replies, strict=True):
            self._heard[model] = time.monotonic()
            old_fields = self._presences.take(self._of_model(model), dict(zip(reply[::2], reply[1::2], strict=True)))
            if forget and old_fields:
                old.append(("HDEL", self._keys.service(model), *old_fields))
        await self._wire.execute(old)

    def _yields(self, model: str, flow: Flow) -> bool:
        service = self._of_model(model)
        if not service.yields(flow):
            self._yielded.pop((model, flow), None)
            return False
        return time.monotonic() - self._yielded.setdefault((model, flow), time.monotonic()) < _YIELD_S

    def _of_model(self, model: str) -> TenantService:
        service = self._services.get(model)
        if service is None:
            service = self._services[model] = TenantService()
        return service

    def _model(self, inflight: InFlight) -> str:
        return self._models[inflight.groups[0][0]]


def _counts(inflight: InFlight) -> bool:
    """Aside requests have their own fairness; and without API keys all requests are of one tenant."""
    return not inflight.job.aside and inflight.tenant is not NOBODY.tenant


def flow_of(inflight: InFlight) -> Flow:
    """Aside requests are all in one: they have their own fairness, over batches."""
    if inflight.job.aside:
        return Flow(0, TenantId(""))
    return Flow(priority_class(inflight.job.priority), inflight.tenant.name)


def _tokens(inflight: InFlight) -> int:
    return sum(len(out.tokens) for out in inflight.out) + inflight.unshown
