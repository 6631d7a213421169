"""Counts what tenants have got of one model's engines, over all API replicas: start-time fair queueing. No I/O.

Goyal, Vin, Cheng: "Start-time Fair Queueing", SIGCOMM 1996. A request's start tag is its flow's finish tag, or the
virtual time if that is later and the flow did not wait; its finish tag lies later by cost / weight. The virtual time is
the lowest finish tag of the flows that wait, and never goes back: who was idle begins there, without credit.
ops/decisions/0070-fair-shares.md has the reasons.
"""

from collections import Counter
from collections.abc import Collection
from heapq import nsmallest
from math import ceil, exp, inf, log, sqrt

from msgspec import Struct
from msgspec.structs import replace

from app.ids import TenantId
from app.messages.lease import Speeds
from app.routing.candidates import ALL, Room
from app.routing.cost import EXPECTED_ANSWER, TOKENS_PER_S
from app.routing.fair_order import CLASSES, Flow, owed_after

LATELY_S = 60.0  # so long after its last request a tenant counts when seats are shared
_REMEMBERED_S = 30.0  # of its own engine time that a tenant is held back at most, for what it got before
_STEP_S = 0.02  # of an engine that has not told its steps
_LEAST_OWN, _MOST_BUSY = 0.1, 0.99  # beyond these, the estimates of a prefill's own part are noise
_FADES = 0.1  # of the mean length of a tenant's answers, at each new one
_LEAST_WEIGHT = 1e-3
_SPARE = 3.0  # free seats, times the square root of what others have: three standard deviations
_AT_ONCE = 4
_USUAL_S = 10.0  # over which is averaged what a tenant usually has
_SEATS = Room(queue=False)


class SeatCost(Struct, frozen=True):
    """The cost of a request at an engine that is full, where each second belongs to all its seats together."""

    prompt_tokens: int  # to compute
    prompt_token_s: float
    answer_token_s: float  # a seat's part of a step, and what its request adds to it

    @classmethod
    def of(cls, tokens: int, speeds: Speeds, seats: int) -> "SeatCost":
        """The speed of prefills has the steps in it in which others decode, too: that part is charged as theirs.

        Prefills that come at random share steps: at a rate λ, and busy for the share b of the time, they take
        λ · b / −ln(1 − b) steps a second.
        """
        step_s = speeds.step_s + seats * speeds.request_step_s or _STEP_S
        others = 0.0
        if speeds.step_s and speeds.busy > 0:
            others = speeds.prefills_per_s * step_s / -log(1 - min(speeds.busy, _MOST_BUSY))
        own = max(_LEAST_OWN, 1 - others)
        return cls(tokens, own / (speeds.prefill_tokens_per_s or TOKENS_PER_S), step_s / seats)

    def seconds(self, answer_tokens: float, prompt_tokens: int | None = None) -> float:
        tokens = self.prompt_tokens if prompt_tokens is None else prompt_tokens
        return tokens * self.prompt_token_s + answer_tokens * self.answer_token_s


class Presence(Struct, frozen=True, array_like=True):
    """A tenant's requests for the model in one API replica."""

    tenant: TenantId
    weight: float
    running: int
    waiting: list[int] = []  # the priority classes in which some wait for room
    wants: int = 0  # requests that have waited so long that others step aside
    held: int = 0  # requests that wait for room


class Account(Struct, frozen=True):
    finish: float  # its finish tag
    weight: float
    seen: float  # when it was last served, seconds since the epoch


class Change(Struct, frozen=True):
    """A change of an account, not yet told: at least `floor`, then `delta` more."""

    floor: float = -inf
    delta: float = 0.0
    weight: float = 1.0

    def then(self, floor: float, delta: float, weight: float) -> "Change":
        return Change(max(self.floor, floor - self.delta), self.delta + delta, weight)

    def applied(self, account: Account | None, now: float) -> Account:
        before = account.finish if account is not None else 0.0
        return Account(max(before, self.floor) + self.delta, self.weight, now)


class Charge(Struct, frozen=True):
    """The charge for a request, as of when it was placed."""

    flow: Flow
    cost: SeatCost
    seconds: float
    had: int  # tokens of its answer then


class TenantService:
    def __init__(self) -> None:
        self.virtual = [0.0] * CLASSES
        self.accounts: dict[Flow, Account] = {}
        self.changes: dict[Flow, Change] = {}  # since they were last taken
        self.owed = [0.0] * CLASSES  # to the classes below each, by this replica
        self.seats = 0  # of all places, as last seen
        self.own: dict[TenantId, Presence] = {}
        self.active: dict[TenantId, float] = {}  # tenants of the last minute, and their weights
        self._others: list[Presence] = []
        self._waiting: set[Flow] = set()  # anywhere
        self._elsewhere: set[Flow] = set()  # waiting in other replicas, and not here
        self._next_elsewhere: list[list[tuple[float, TenantId]]] | None = None  # `_lowest()`, while it holds
        self._wanting: set[TenantId] = set()  # whose requests wait for long
        self._answers: dict[TenantId, float] = {}  # mean tokens
        self._costs: dict[Flow, float] = {}  # the last cost
        self._running: Counter[TenantId] = Counter()
        self._usual: dict[TenantId, float] = {}  # how many run, on average
        self._looked = 0.0  # seconds since the epoch

    @property
    def is_shared(self) -> bool:
        """Whether several tenants use the model: with one alone, nothing is held back."""
        return len(self.active) > 1

    def finish(self, flow: Flow) -> float:
        account = self.accounts.get(flow)
        return account.finish if account is not None else 0.0

    def start(self, flow: Flow) -> float:
        """The start tag of its next request."""
        finish = self.finish(flow)
        return finish if flow in self._waiting else max(finish, self.virtual[flow.priority_class])

    def step(self, flow: Flow) -> tuple[float, float]:
        """The probable cost of its next request, and how far its tag advances then."""
        cost = self._costs.get(flow, 0.1)
        account = self.accounts.get(flow)
        return cost, cost / _bounded(account.weight if account is not None else 1.0)

    def expected_answer(self, tenant: TenantId, most: int) -> float:
        return min(most, self._answers.get(tenant, EXPECTED_ANSWER))

    def answered(self, tenant: TenantId, tokens: int) -> None:
        mean = self._answers.get(tenant)
        self._answers[tenant] = tokens if mean is None else mean + _FADES * (tokens - mean)

    def charge(self, flow: Flow, weight: float, cost: float, now: float) -> None:
        """One of its requests is served. `now`: seconds since the epoch."""
        start, c = self.start(flow), flow.priority_class
        if self.is_shared and self._waiting:
            self.owed = owed_after(self.owed, flow, cost, dict.fromkeys([*self._waiting, flow]))
        self._costs[flow] = cost
        waits = flow in self._waiting
        self._change(flow, -inf if waits else start, cost, weight, now)
        self._advance(c, start)
        self.virtual[c] = max(self.virtual[c], self.finish(flow) - _REMEMBERED_S / _bounded(weight))
        own = self.own.get(flow.tenant) or Presence(flow.tenant, weight, 0)
        self.own[flow.tenant] = replace(own, weight=weight, running=own.running + 1)
        self.active.setdefault(flow.tenant, weight)
        self._running[flow.tenant] += 1

    def correct(self, flow: Flow, weight: float, seconds: float, now: float) -> None:
        """One of its requests has cost so much more than it was charged."""
        self._change(flow, -inf, seconds, weight, now)

    def present(self, own: Collection[Presence], now: float) -> None:
        """Takes what this replica has now. A flow that begins to wait begins at the virtual time, if that is later."""
        self.own = {p.tenant: p for p in own}
        before = self._waiting
        self._look(now)
        for flow in self._waiting - before:
            if self.finish(flow) < self.virtual[flow.priority_class]:
                weight = self.active.get(flow.tenant, 1.0)
                self._change(flow, self.virtual[flow.priority_class], 0.0, weight, now)

    def hear(self, virtual: list[float], accounts: dict[Flow, Account], others: list[Presence], now: float) -> None:
        """Takes what all replicas know; `others`: of the other replicas."""
        self.virtual = [max(pair) for pair in zip(self.virtual, virtual, strict=True)]
        for flow, change in self.changes.items():
            accounts[flow] = change.applied(accounts.get(flow), now)
        self.accounts, self._others = accounts, others
        self._look(now)

    def taken_changes(self) -> dict[Flow, Change]:
        """Takes out the changes that other replicas have to hear."""
        changes, self.changes = self.changes, {}
        return changes

    def running(self, tenant: TenantId) -> int:
        """Number of the tenant's requests that run, at all replicas."""
        return self._running.get(tenant, 0)

    def room(self, flow: Flow, weight: float, seats: int, places: int) -> Room:
        """The part of each place that a request of the flow may have. `seats`: of all places.

        A tenant that has its share of the seats, or of the engines' time, leaves some free for others, so that their
        next requests find one at once. It leaves as many as they usually have, and by the rule of the square root more,
        since that number varies by about the root of its mean.
        """
        tenant = flow.tenant
        if not self.is_shared and (not self.active or tenant in self.active):
            return ALL
        self.seats = seats
        weights = {**self.active, tenant: weight}
        of_weight = seats / max(_LEAST_WEIGHT, sum(weights.values()))
        mine, share = self.running(tenant) + 1, max(1.0, of_weight * weight)
        quiet = [
            t for t, w in weights.items() if t != tenant and t not in self._wanting and self.running(t) <= of_weight * w
        ]
        # Of two floods one always has less than its share of the seats: beside quiet tenants it leaves them some, too.
        presses = bool(quiet) and tenant in self._wanting and mine > share / 2
        if mine <= share and not self._is_ahead(flow, share) and not presses:
            return _SEATS
        now = sum(self.running(t) for t in quiet)
        usual = sum(max(self.running(t), self._usual.get(t, 0.0)) for t in quiet)
        return Room(queue=False, kept=ceil((_SPARE * sqrt(usual + 1) + usual - now) / max(1, places)))

    def steps_aside(self) -> tuple[TenantId, int] | None:
        """The tenant that is furthest over its share, and how many of its requests here have to leave their seats.

        For tenants whose requests have waited for long and which have less than half their share: until they have that.
        """
        of_weight = self.seats / max(_LEAST_WEIGHT, sum(self.active.values()))
        wants = Counter[TenantId]()
        for p in (*self._others, *self.own.values()):
            wants[p.tenant] += p.wants
        halves = {t: int(of_weight * self.active.get(t, 0.0) / 2) for t, count in wants.items() if count}
        missing = sum(max(0, min(wants[t], half - self.running(t))) for t, half in halves.items())
        excess = {t: self.running(t) - of_weight * w for t, w in self.active.items()}
        most = max(excess, key=excess.__getitem__, default=None)
        if most is None or missing <= 0 or excess[most] <= 0 or most not in self.own:
            return None
        here = self.own[most].running / self.running(most)
        return most, min(ceil(here * min(missing, excess[most])), self.own[most].running)

    def yields(self, flow: Flow) -> bool:
        """Whether a flow waits in another replica that goes before this one by more than one of its requests."""
        if not self._elsewhere:
            return False
        if self._next_elsewhere is None:
            self._next_elsewhere = self._lowest()
        start = self.start(flow) - self.step(flow)[1]
        return any(
            (c < flow.priority_class or finish < start) and tenant != flow.tenant
            for c in range(flow.priority_class + 1)
            for finish, tenant in self._next_elsewhere[c]
        )

    def _lowest(self) -> list[list[tuple[float, TenantId]]]:
        """The two lowest finish tags of each class elsewhere, with their tenants: one of them is another tenant's."""
        tags: list[list[tuple[float, TenantId]]] = [[] for _ in range(CLASSES)]
        for flow in self._elsewhere:
            tags[flow.priority_class].append((self.finish(flow), flow.tenant))
        return [nsmallest(2, of_class) for of_class in tags]

    def _is_ahead(self, flow: Flow, share: float) -> bool:
        """Whether it got more than those that wait: by more requests than it may have seats, if it never waits long."""
        may = 0.0 if flow.tenant in self._wanting else max(_AT_ONCE, share) * self.step(flow)[1]
        return self.start(flow) - self.virtual[flow.priority_class] > may

    def _change(self, flow: Flow, floor: float, delta: float, weight: float, now: float) -> None:
        weight = _bounded(weight)
        change, earlier_change = Change(floor, delta / weight, weight), self.changes.get(flow)
        self.changes[flow] = change if earlier_change is None else earlier_change.then(floor, change.delta, weight)
        self.accounts[flow] = change.applied(self.accounts.get(flow), now)
        if flow in self._elsewhere:
            self._next_elsewhere = None

    def _advance(self, c: int, start: float) -> None:
        tags = [self.finish(flow) for flow in self._waiting if flow.priority_class == c]
        self.virtual[c] = max(self.virtual[c], min(tags) if tags else start)

    def _look(self, now: float) -> None:
        lately = {f.tenant: a.weight for f, a in self.accounts.items() if now - a.seen < LATELY_S}
        self.active = lately | {p.tenant: p.weight for p in (*self._others, *self.own.values())}
        here = {Flow(c, p.tenant) for p in self.own.values() for c in p.waiting}
        there = {Flow(c, p.tenant) for p in self._others for c in p.waiting}
        self._waiting, self._elsewhere, self._next_elsewhere = here | there, there - here, None
        self._wanting = {p.tenant for p in (*self._others, *self.own.values()) if p.wants}
        self._running = Counter()
        for p in (*self._others, *self.own.values()):
            self._running[p.tenant] += p.running
        part = 1 - exp(-max(0.0, now - self._looked) / _USUAL_S)
        self._usual = {
            t: usual + part * (self.running(t) - usual) for t in self.active for usual in [self._usual.get(t, 0.0)]
        }
        self._looked = now


def _bounded(weight: float) -> float:
    return max(weight, _LEAST_WEIGHT)
