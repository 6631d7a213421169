"""Tenants' shares of full engines: how far they are from the ideal, in which each second is divided by weight."""

import math
from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count, pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from app.ids import TenantId
from app.messages.lease import Speeds
from app.routing.candidates import ALL, Candidate, PlaceLimits, Room
from app.routing.fair_line import FairLine
from app.routing.fair_order import LEAST, Flow, next_flow, turns
from app.routing.policy import is_full
from app.routing.tenant_service import Change, Presence, SeatCost, TenantService
from tests.leases import candidate


class Asked(Struct, frozen=True):
    tenant: TenantId
    weight: float
    came: float
    cost: float
    priority_class: int = 1
    really: float | None = None  # cost; None: as predicted

    @property
    def flow(self) -> Flow:
        return Flow(self.priority_class, self.tenant)


class Served(Struct, frozen=True):
    began: float
    ended: float
    asked: Asked


def served(asked: Sequence[Asked], seats: int) -> list[Served]:
    """Engines with so many seats, where a request has one for `seats` times its cost: a second of all is a second."""
    service, line = TenantService(), FairLine[Asked]()
    weights = {one.tenant: one.weight for one in asked}
    numbers, to_come = count(), sorted(asked, key=lambda one: one.came)[::-1]
    running: list[tuple[float, int, Asked]] = []
    history, now = list[Served](), 0.0

    def look() -> None:
        has, flows = Counter(one.tenant for *_, one in running), line.flows()
        tenants = sorted({flow.tenant for flow in flows} | {*has})
        waiting = {t: [flow.priority_class for flow in flows if flow.tenant == t] for t in tenants}
        service.present([Presence(t, weights[t], has[t], waiting[t]) for t in tenants], now)

    while to_come or running or line:
        times = [one.came for one in to_come[-1:]] + [end for end, *_ in running[:1]]
        if len(running) == seats or not line:
            now = max(now, min(times))
        while to_come and to_come[-1].came <= now:
            one = to_come.pop()
            line.push(one, one.flow, 0, 0.0, len(asked))
        while running and running[0][0] <= now:
            one = heappop(running)[-1]
            if one.really is not None:
                service.correct(one.flow, one.weight, one.really - one.cost, now)
        look()
        while len(running) < seats and line:
            (one, *others) = line.take(1, service.start, service.step, service.owed)
            for other in others:  # as a replica whose other heads found no room
                line.push(other, other.flow, 0, 0.0, len(asked))
            service.charge(one.flow, one.weight, one.cost, now)
            cost = one.cost if one.really is None else one.really
            history.append(Served(now, now + seats * cost, one))
            heappush(running, (now + seats * cost, next(numbers), one))
            look()
    return history


def spent(history: Sequence[Served], tenant: str, since: float, until: float) -> float:
    return sum(s.asked.cost for s in history if s.asked.tenant == tenant and since <= s.began < until)


weights = st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=2, max_size=4)
costs = st.lists(st.floats(0.05, 2.0), min_size=6, max_size=40)


def flood(of: Sequence[float], sizes: Sequence[Sequence[float]], came: Sequence[float]) -> list[Asked]:
    return [
        Asked(TenantId(f"t{i}"), weight, came[i], cost)
        for i, weight in enumerate(of)
        for cost in sizes[i]
    ]  # fmt: skip


@given(st.data(), weights, st.integers(1, 6))
@settings(deadline=None)
def test_who_waits_is_never_further_behind_its_fluid_share_than_one_request_of_each(
    data: st.DataObject, of: list[float], seats: int
) -> None:
    """Between any two moments in which all wait; in the ideal, each second goes to all of them by their weights."""
    sizes = [data.draw(costs) for _ in of]
    came = [data.draw(st.floats(0, 5)) for _ in of]
    history = served(flood(of, sizes, came), seats)
    begins = max(came)
    ends = min(max(s.began for s in history if s.asked.tenant == f"t{i}") for i in range(len(of)))
    moments = [s.began for s in history if begins <= s.began <= ends]
    if len(moments) < 2:
        return
    bound = sum(max(size) / weight for size, weight in zip(sizes, of, strict=True))
    for since, until in ((moments[0], moments[-1]), (moments[0], moments[len(moments) // 2])):
        shares = [spent(history, f"t{i}", since, until) for i in range(len(of))]
        for mine, weight in zip(shares, of, strict=True):
            fluid = sum(shares) * weight / sum(of)
            assert abs(mine - fluid) <= weight * bound + 1e-6


@given(st.data(), weights, st.integers(1, 6))
@settings(deadline=None)
def test_a_seat_is_never_empty_while_somebody_waits_and_everybody_is_served(
    data: st.DataObject, of: list[float], seats: int
) -> None:
    """The order of arrival and the cost of requests don't matter."""
    requests = [
        Asked(
            TenantId(f"t{i}"), weight, data.draw(st.floats(0, 20)), data.draw(st.floats(0.05, 2.0)),
            data.draw(st.integers(0, 2)),
        )
        for i, weight in enumerate(of)
        for _ in range(data.draw(st.integers(0, 8)))
    ]  # fmt: skip
    history = served(requests, seats)
    assert sorted(s.asked.came for s in history) == sorted(one.came for one in requests)
    for s in history:
        if s.began > s.asked.came:  # it waited: all seats were taken until then
            at = (s.asked.came + s.began) / 2
            assert sum(other.began <= at < other.ended for other in history) == seats


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0.05, 2.0)), min_size=1, max_size=30))
def test_one_tenant_alone_is_served_by_class_and_then_in_its_order(asked: list[tuple[int, float]]) -> None:
    history = served([Asked(TenantId("one"), 1.0, 0.0, cost, c) for c, cost in asked], 1)
    assert [(s.asked.priority_class, s.asked.cost) for s in history] == sorted(asked, key=lambda one: one[0])


@given(st.lists(st.floats(0.05, 2.0), min_size=3, max_size=8), st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_a_lower_class_has_its_least_share_of_the_time_and_no_more(sizes: list[float], seats: int) -> None:
    """Beside another tenant's urgent requests, which never end."""
    urgent = [Asked(TenantId("urgent"), 1.0, 0.0, 0.5, 0)] * 250
    later = [Asked(TenantId("later"), 1.0, 0.0, cost, 2) for cost in sizes]
    history = served([*urgent, *later], seats)
    last = max(i for i, s in enumerate(history) if s.asked.tenant == "later")
    for end in range(20, last):
        part = history[:end]
        total = sum(s.asked.cost for s in part)
        mine = sum(s.asked.cost for s in part if s.asked.tenant == "later")
        assert abs(mine - LEAST * total) <= max(sizes) + 0.5


@given(st.floats(0.2, 5.0), st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_a_wrong_prediction_is_paid_back(wrong: float, seats: int) -> None:
    """Two tenants are charged alike, and one's answers are longer or shorter than that."""
    a = [Asked(TenantId("a"), 1.0, 0.0, 0.5)] * 100
    b = [Asked(TenantId("b"), 1.0, 0.0, 0.5, really=0.5 * wrong)] * 100
    history = served([*a, *b], seats)
    both = min(max(i for i, s in enumerate(history) if s.asked.tenant == t) for t in "ab")
    part = history[:both]
    real = [sum(s.asked.really or s.asked.cost for s in part if s.asked.tenant == t) for t in "ab"]
    assert abs(real[0] - real[1]) <= (seats + 1) * (abs(wrong - 1) + 1)


def test_who_was_idle_has_no_credit_and_who_was_alone_no_debt() -> None:
    """An hour of the engines for the one, then both want them."""
    alone = [Asked(TenantId("alone"), 1.0, 0.0, 1.0)] * 60
    comes = [Asked(TenantId("comes"), 1.0, 30.5, 1.0)] * 30
    order = [s.asked.tenant for s in served([*alone, *comes], 1)]
    assert set(order[:31]) == {"alone"}
    assert all(a != b for a, b in pairwise(order[31:80]))


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 1.0, 5.0, -float("inf")]), st.floats(-2, 2)), max_size=10),
    st.floats(0, 5),
)
def test_changes_may_be_told_together(changes: list[tuple[float, float]], before: float) -> None:
    """The result is that of telling each at once."""
    together = Change()
    one_by_one = before
    for floor, delta in changes:
        together = together.then(floor, delta, 1.0)
        one_by_one = max(one_by_one, floor) + delta
    assert abs(max(before, together.floor) + together.delta - one_by_one) < 1e-9


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 5), min_size=1), st.integers(1, 12))
@example({"a": 3}, 8)
def test_so_many_turns_as_there_are_requests(waiting: dict[str, int], most: int) -> None:
    flows = {Flow(1, TenantId(name)): n for name, n in waiting.items()}
    order = turns(flows, dict.fromkeys(flows, 0.0), dict.fromkeys(flows, (1.0, 1.0)), most)
    assert len(order) == min(most, sum(flows.values()))
    assert all(order.count(flow) <= n for flow, n in flows.items())


A, B, C = TenantId("a"), TenantId("b"), TenantId("c")


def shared(*present: Presence, others: Sequence[Presence] = ()) -> TenantService:
    service = TenantService()
    service.hear([0.0] * 3, {}, list(others), 100.0)
    service.present(list(present), 100.0)
    return service


def test_a_tenant_alone_may_have_all_and_several_share_the_seats() -> None:
    """Requests that run at other replicas count. There are 32 seats, of two places."""
    assert shared(Presence(A, 1.0, 500)).room(Flow(1, A), 1.0, 32, 2) == ALL
    both = shared(Presence(A, 1.0, 7), Presence(B, 3.0, 2), others=[Presence(B, 3.0, 20)])
    assert both.room(Flow(1, A), 1.0, 32, 2) == both.room(Flow(1, B), 3.0, 32, 2) == Room(queue=False)
    assert shared(Presence(A, 1.0, 8), Presence(B, 3.0, 3)).room(Flow(1, A), 1.0, 32, 2) == Room(queue=False, kept=3)
    more = shared(Presence(A, 1.0, 3), Presence(B, 3.0, 2), others=[Presence(B, 3.0, 22)])
    assert more.room(Flow(1, B), 3.0, 32, 2) == Room(queue=False, kept=3)
    assert more.room(Flow(1, B), 3.0, 32, 8) == Room(queue=False, kept=1)
    assert more.room(Flow(1, C), 1.0, 32, 2) == Room(queue=False)


def test_nothing_more_is_kept_for_tenants_whose_requests_wait_for_long() -> None:
    """Such tenants have their turns. One that found no seat for a moment needs more of them, not fewer."""
    service = shared(Presence(A, 1.0, 30), Presence(B, 1.0, 15, [1], 9))
    assert service.room(Flow(1, A), 1.0, 32, 2) == Room(queue=False, kept=2)
    service = shared(Presence(A, 1.0, 30), Presence(B, 1.0, 8, [1]))
    assert service.room(Flow(1, A), 1.0, 32, 2) == Room(queue=False, kept=5)


def test_a_flood_that_has_its_share_of_the_time_gets_no_kept_seat_however_few_seats_it_has() -> None:
    """Long prompts take much time on few seats. As many requests at once as it may have seats are no flood."""
    waits = Presence(B, 1.0, 20, [1], 5)
    for wants, flood in ((5, True), (0, False)):
        service = shared(Presence(A, 1.0, 1, [1], wants), waits)
        service.charge(Flow(1, A), 1.0, 0.3, 100.0)
        service.charge(Flow(1, A), 1.0, 0.3, 100.0)
        assert (service.room(Flow(1, A), 1.0, 32, 2).kept > 0) == flood
    for _ in range(14):
        service.charge(Flow(1, A), 1.0, 0.3, 100.0)
    service.present([Presence(A, 1.0, 1), waits], 100.0)  # most have ended
    assert not service.room(Flow(1, A), 1.0, 32, 2).kept
    service.charge(Flow(1, A), 1.0, 0.3, 100.0)
    assert service.room(Flow(1, A), 1.0, 32, 2).kept


def test_a_flood_below_its_share_of_the_seats_leaves_some_to_a_quiet_tenant_too() -> None:
    """One of two floods always is. It takes any seat up to half its share, and also where no tenant is quiet."""
    floods = Presence(A, 1.0, 10, [1], 9), Presence(B, 3.0, 16, [1], 9)
    assert shared(*floods, Presence(C, 1.0, 1)).room(Flow(1, B), 3.0, 32, 2).kept
    assert not shared(*floods).room(Flow(1, B), 3.0, 32, 2).kept
    few = Presence(A, 1.0, 20, [1], 9), Presence(B, 3.0, 8, [1], 9)
    assert not shared(*few, Presence(C, 1.0, 1)).room(Flow(1, B), 3.0, 32, 2).kept
    assert not shared(*floods, Presence(C, 1.0, 1)).room(Flow(1, C), 1.0, 32, 2).kept


def test_the_furthest_over_its_share_steps_aside_until_who_waits_has_half_of_its_own() -> None:
    """Each replica does its part of that."""
    comes = Presence(B, 1.0, 0, [1], 20)
    service = shared(Presence(A, 1.0, 8), others=[comes, Presence(A, 1.0, 24)])
    service.room(Flow(1, A), 1.0, 32, 2)
    assert service.steps_aside() == (A, 2)
    few = shared(Presence(A, 1.0, 8), others=[Presence(B, 1.0, 0, [1], 1), Presence(A, 1.0, 24)])
    few.room(Flow(1, A), 1.0, 32, 2)
    assert few.steps_aside() == (A, 1)
    for nobody in (
        shared(Presence(A, 1.0, 32), others=[Presence(B, 1.0, 0, [1], 0)]),
        shared(Presence(A, 1.0, 24), others=[Presence(B, 1.0, 8, [1], 5)]),
        shared(Presence(A, 1.0, 32)),
    ):
        nobody.room(Flow(1, A), 1.0, 32, 2)
        assert nobody.steps_aside() is None


def test_who_finds_room_at_once_begins_at_the_virtual_time() -> None:
    """The virtual time is the last start where nobody waits; the other's tag is ahead of it by its own request."""
    service = shared()
    for _ in range(5):
        service.charge(Flow(1, A), 1.0, 1.0, 100.0)
    assert service.start(Flow(1, B)) == 4.0
    assert service.start(Flow(1, A)) == 5.0
    assert service.start(Flow(0, B)) == 0.0


def test_who_came_lately_counts_for_a_minute() -> None:
    service = shared()
    service.charge(Flow(1, A), 1.0, 1.0, 100.0)
    service.charge(Flow(1, B), 1.0, 1.0, 150.0)
    service.present([], 155.0)
    assert service.is_shared
    service.present([], 170.0)
    assert not service.is_shared


def test_who_is_ahead_yields_to_those_who_wait_elsewhere() -> None:
    """Its lead must exceed a request, and the more urgent class goes first."""
    waits = Presence(B, 1.0, 0, [1])
    service = shared(Presence(A, 1.0, 3, [1]), others=[waits])
    flow = Flow(1, A)
    service.charge(flow, 1.0, 1.0, 100.0)
    assert not service.yields(flow)
    service.charge(flow, 1.0, 1.0, 100.0)
    assert service.yields(flow)
    assert service.yields(Flow(2, A))
    assert not service.yields(Flow(0, A))
    assert not service.yields(Flow(1, B))


@given(
    waits=st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abcd"), st.integers(0, 4)), max_size=8),
    asks=st.tuples(st.integers(0, 2), st.sampled_from("abcd"), st.integers(0, 4)),
)
def test_a_flow_yields_to_any_of_another_tenant_that_goes_before_it(
    waits: list[tuple[int, str, int]], asks: tuple[int, str, int]
) -> None:
    """A charge to a tenant that waits elsewhere counts even after the last look."""
    elsewhere = {Flow(c, TenantId(tenant)): float(seconds) for c, tenant, seconds in waits}
    service = shared(others=[Presence(flow.tenant, 1.0, 0, [flow.priority_class]) for flow in elsewhere])
    flow = Flow(asks[0], TenantId(asks[1]))
    service.yields(flow)
    for one, seconds in {**elsewhere, flow: float(asks[2])}.items():
        service.charge(one, 1.0, seconds, 100.0)
    start = service.start(flow) - service.step(flow)[1]
    assert service.yields(flow) == any(
        one.tenant != flow.tenant
        and (
            one.priority_class < flow.priority_class
            or (one.priority_class == flow.priority_class and service.finish(one) < start)
        )
        for one in elsewhere
    )


def test_what_a_look_costs_grows_with_the_tenants_and_not_with_their_square() -> None:
    """Five hundred of them stopped the event loop for 200 ms, each time."""

    class Counted(TenantService):
        finishes = 0

        def finish(self, flow: Flow) -> float:
            self.finishes += 1
            return super().finish(flow)

    call_counts = {}
    for number in (20, 200):
        service = Counted()
        service.present([Presence(TenantId(f"here {i}"), 1.0, 0, [1]) for i in range(number)], 100.0)
        service.hear([0.0] * 3, {}, [Presence(TenantId(f"there {i}"), 1.0, 0, [1]) for i in range(number)], 100.0)
        line = FairLine[int]()
        for i in range(number):
            line.push(i, Flow(1, TenantId(f"here {i}")), 0, 0.0, number)
        service.finishes = 0
        assert len(line.take(8, service.start, service.step, service.owed, service.yields)) == 16
        call_counts[number] = service.finishes
    assert call_counts[200] <= 10 * call_counts[20]


@given(
    counts=st.lists(st.integers(1, 3), min_size=1, max_size=6),
    tags=st.lists(st.integers(0, 3), min_size=6, max_size=6),
    most=st.integers(1, 12),
)
def test_turns_of_one_class_are_those_that_the_rule_of_all_gives(counts: list[int], tags: list[int], most: int) -> None:
    flows = [Flow(1, TenantId(f"t{i}")) for i in range(len(counts))]
    waiting, now = dict(zip(flows, counts, strict=True)), {f: float(t) for f, t in zip(flows, tags, strict=False)}
    steps = {flow: (1.0, 0.5 + i) for i, flow in enumerate(flows)}
    actual_turns = turns(waiting, now, steps, most)
    remaining_counts, expected_turns = dict(waiting), list[Flow]()
    while remaining_counts and len(expected_turns) < most:
        flow = next_flow(remaining_counts, now.__getitem__)
        expected_turns.append(flow)
        now[flow] += steps[flow][1]
        remaining_counts[flow] -= 1
        remaining_counts = {one: number for one, number in remaining_counts.items() if number}
    assert actual_turns == expected_turns


def place(seats: int, requests: int, request_s: float) -> Candidate:
    speeds = Speeds(request_s=request_s)
    return candidate(limits=PlaceLimits(max_queued=16), max_running=seats, speeds=speeds, requests=requests)


def test_some_seats_are_kept_and_nothing_queues_where_tenants_share_a_place() -> None:
    """An exception is made where answers are so short that seats would be empty until the next one comes."""
    seats, smaller_room = Room(queue=False), Room(queue=False, kept=2)
    assert not is_full(place(32, 47, 1.0))
    assert is_full(place(32, 32, 1.0), seats)
    assert not is_full(place(32, 31, 1.0), seats)
    assert is_full(place(32, 30, 1.0), smaller_room)
    assert not is_full(place(32, 29, 1.0), smaller_room)
    assert not is_full(place(2, 1, 1.0), smaller_room)
    assert not is_full(place(32, 40, 0.02), seats)
    assert is_full(place(32, 48, 0.002), seats)


def test_a_flood_refuses_nobody_elses_requests() -> None:
    """The line is full of one tenant's requests: its last one has to leave."""
    line = FairLine[str]()
    for i in range(4):
        assert line.push(f"a{i}", Flow(1, A), 0, 1.0, 4) is None
    assert line.push("b0", Flow(1, B), 0, 1.0, 4) == "a3"
    assert line.push("c0", Flow(2, C), 5, 9.0, 4) == "a2"
    assert line.push("a4", Flow(1, A), 0, 0.5, 4, weights={A: 10.0}) in ("b0", "c0")


def test_a_cost_is_the_engines_time_divided_by_its_seats() -> None:
    """A full engine of 16 seats makes 16 tokens in a step of 10 ms and 16 · 0.5 ms: each costs a sixteenth of that."""
    speeds = Speeds(prefill_tokens_per_s=10_000.0, step_s=0.010, request_step_s=0.0005)
    cost = SeatCost.of(1000, speeds, 16)
    assert abs(cost.seconds(100) - (0.1 + 100 * 0.018 / 16)) < 1e-9
    assert abs(cost.seconds(100, prompt_tokens=0) - 100 * 0.018 / 16) < 1e-9


def test_a_short_prompt_does_not_pay_for_the_step_in_which_others_decode() -> None:
    """Ten steps of 22 ms a second have prompts, 18 ms of them for others' tokens."""
    busy, tokens_per_s = 0.22, 1000 / 0.22
    rate = 10 * -math.log(1 - busy) / busy  # some steps have several
    speeds = Speeds(
        prefill_tokens_per_s=tokens_per_s, prefills_per_s=rate, busy=busy, step_s=0.010, request_step_s=0.0005
    )
    assert abs(SeatCost.of(1000, speeds, 16).seconds(0) - 10 * 0.004) < 1e-9
    busy_speeds = Speeds(prefill_tokens_per_s=100 / 0.022, prefills_per_s=40, busy=0.22, step_s=0.018)
    assert SeatCost.of(100, busy_speeds, 16).seconds(0) > 0.002
