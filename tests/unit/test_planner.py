"""The planner's decision: what always holds, and what it does with days that are easy to say."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from app.ids import PoolId, WorkerId
from app.planner.budget import least_share
from app.planner.capacity import Demand, attained, mean, points
from app.planner.decision import attainable, decide, drained
from app.planner.forecast import DAY_S, forecast
from app.planner.gpus import Asked, shared
from app.planner.observed import EDGES, Histogram, Objective, ScaleLimits, SeenPool, SeenWorker, Speed, Traffic

SPEED = Speed(prefill_tokens_per_s=30000, step_s=0.006, request_step_s=0.0004, seats=256, start_s=30)
OBJECTIVE = Objective(ttft_s=0.5, itl_s=0.025)
POOL = PoolId("decode-pool-a")
DEMAND = Demand([(300.0, 0.5), (1500.0, 0.4), (4000.0, 0.1)], [(60.0, 0.4), (200.0, 0.4), (600.0, 0.2)])

rates = st.floats(0.1, 60)


def histogram(lengths: Sequence[int]) -> Histogram:
    counts = [0] * (len(EDGES) + 1)
    for length in lengths:
        counts[bisect_left(EDGES, length)] += 1
    return Histogram(counts, sum(lengths))


def window(begin: float, arrivals: int, seconds: float = 10.0, missed: int = 0) -> Traffic:
    prompts, answers = histogram([1200] * arrivals), histogram([200] * arrivals)
    return Traffic(begin, seconds, arrivals, prompts, answers, arrivals - missed, arrivals)


def steady(rate: float, count: int = 60, missed: int = 0) -> list[Traffic]:
    return [window(i * 10.0, round(rate * 10), missed=missed) for i in range(count)]


def pool(wanted: int = 1, **more) -> SeenPool:
    workers = [SeenWorker(WorkerId(f"w{i}"), True, False, 0, float(i)) for i in range(wanted)]
    return SeenPool(
        **{"pool": POOL, "model": "m", "role": "both", "speed": SPEED, "workers": workers, "wanted": wanted, **more}
    )


def plan(traffic: Sequence[Traffic], seen: SeenPool, least: int = 0, most: int = 100):
    end = traffic[-1].begin + traffic[-1].seconds
    (pool_plan,) = decide(
        end, {"m": traffic}, [seen], {"m": OBJECTIVE}, ScaleLimits({seen.pool: least}, {seen.pool: most})
    )
    return pool_plan


@given(rates, rates, st.integers(1, 30), st.sampled_from(["both", "prefill", "decode"]))
def test_more_traffic_attains_no_more(one, other, workers, role):
    low, high = sorted((one, other))
    first, second = (attained(rate, workers, DEMAND, SPEED, OBJECTIVE, role) for rate in (low, high))
    assert 0 <= second <= first + 1e-2 <= 1.02  # the slices of a distribution are not exact


@given(rates, st.integers(1, 30), st.sampled_from(["both", "prefill", "decode"]))
def test_a_worker_more_attains_no_less(rate, workers, role):
    first, second = (attained(rate, n, DEMAND, SPEED, OBJECTIVE, role) for n in (workers, workers + 1))
    assert second >= first - 1e-2


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 80), st.integers(1, 80), st.integers(0, 10))
def test_more_traffic_gets_no_fewer_workers(one, other, wanted):
    """Some traffic: without any, nobody knows what requests need, and a pool keeps its workers."""
    low, high = sorted((one, other))
    assert plan(steady(low), pool(wanted)).workers <= plan(steady(high), pool(wanted)).workers


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=90), st.integers(0, 12), st.integers(0, 6), st.integers(0, 6),
    st.booleans(),
)  # fmt: skip
def test_a_plan_is_within_its_limits_and_always_the_same(arrivals, wanted, least, more, aside):
    traffic = [window(i * 10.0, n) for i, n in enumerate(arrivals)]
    first, again = (plan(traffic, pool(wanted, aside=aside), least, least + more) for _ in range(2))
    assert least <= first.workers <= least + more
    assert first == again


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8), st.integers(1, 8)), min_size=1, max_size=4),
    st.integers(0, 40),
)
def test_gpus_are_never_more_than_there_are(asked, gpus):
    traffic = {str(i): steady(rate) for i, (rate, _, _) in enumerate(asked)}
    pools = [pool(workers, pool=PoolId(f"p{i}"), model=str(i), gpus=each) for i, (_, workers, each) in enumerate(asked)]
    limits = ScaleLimits({p.pool: 1 for p in pools}, {p.pool: 30 for p in pools}, gpus)
    plans = decide(600.0, traffic, pools, {str(i): OBJECTIVE for i in range(len(asked))}, limits)
    assert sum(pool_plan.workers * p.gpus for pool_plan, p in zip(plans, pools, strict=True)) <= gpus


def test_gpus_go_where_they_serve_the_most_and_none_is_left_over():
    small = Asked(0, 2, 1, 10.0, lambda n: 10.0 if n >= 2 else 0.0)
    large = Asked(0, 4, 1, 12.0, lambda n: 3.0 * n)
    assert shared([small, large], 3) == [2, 1]
    hopeless = Asked(1, 9, 1, 50.0, lambda n: 0.0)
    assert shared([hopeless], 5) == [5]


@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 9), st.floats(0, 1e6)), max_size=12),
    st.integers(0, 12),
)
def test_the_most_valuable_cache_is_never_drained_before_a_lesser_one(workers, wanted):
    pool_workers = [SeenWorker(WorkerId(str(i)), *one) for i, one in enumerate(workers)]
    going = drained(pool_workers, wanted)
    staying = [w for w in pool_workers if not w.draining and w.id not in going]
    assert len(staying) == min(wanted, sum(not w.draining for w in pool_workers))
    lost_rates = [w.reused_tokens_per_s for w in pool_workers if w.id in going and w.ready]
    assert max(lost_rates, default=0) <= min((w.reused_tokens_per_s for w in staying), default=math.inf)


def test_a_rise_is_answered_at_once_with_all_workers_it_needs():
    quiet, busy = steady(3, 60), [window(600 + i * 10.0, 250) for i in range(6)]
    before, after = plan(quiet, pool(1)), plan(quiet + busy, pool(1))
    assert before.workers == 1
    assert after.workers >= 4
    assert after.drain == () or after.drain == []


def test_what_no_number_of_workers_serves_in_time_asks_for_few():
    length = EDGES[60] - 1  # over a second of prefilling
    long = histogram([length])
    traffic = [replace(one, prompts=long, met=0) for one in steady(0.1)]
    assert plan(traffic, pool(1), 1).workers <= 3


@pytest.mark.parametrize("least", [0, 1])
def test_an_objective_that_nobody_can_meet_ends_no_workers_that_serve(least: int) -> None:
    """A step that is 3 % too slow, or prompts that are a little too long, asked for none at all."""
    traffic = steady(50)
    slow = replace(SPEED, step_s=OBJECTIVE.itl_s * 1.03)
    pool_plan = plan(traffic, pool(16, speed=slow), least)
    assert pool_plan.reason == "unattainable"
    quick = replace(SPEED, step_s=OBJECTIVE.itl_s / 2)
    assert pool_plan.workers >= plan(traffic, pool(16, speed=quick), least).workers / 2
    shortest = next(n for n in range(1, 100) if attained(50, n, DEMAND, slow, Objective(1.0, 0.05), "both") > 0.9)
    assert pool_plan.workers >= shortest
    long = [replace(one, prompts=histogram([16_000] * one.arrivals)) for one in steady(2)]
    pool_plan = plan(long, pool(16), least)
    assert (pool_plan.reason, pool_plan.workers >= 2) == ("unattainable", True)
    assert plan(steady(0, 60), pool(16, speed=slow), least).workers <= 16


@pytest.mark.parametrize("role", ["both", "prefill", "decode"])
def test_a_speed_that_varies_a_little_changes_the_plan_a_little(role: str) -> None:
    """The plan may cross what the objective asks for: pools went from a thousand workers to ten and back."""

    def workers(ratio: float) -> int:
        step, prefill = OBJECTIVE.itl_s * ratio, 1200 / OBJECTIVE.ttft_s / ratio
        speed = replace(SPEED, step_s=SPEED.step_s if role == "prefill" else step)
        speed = replace(speed, prefill_tokens_per_s=speed.prefill_tokens_per_s if role == "decode" else prefill)
        return plan(steady(50), pool(1, speed=speed, role=role), 0, 1000).workers

    counts = [workers(0.9 * 1.02**number) for number in range(40)]
    assert all(max(one, other) <= 1.5 * min(one, other) + 2 for one, other in pairwise(counts))
    assert min(counts) > 0


def test_gpus_go_to_a_pool_that_serves_in_time_before_one_that_can_not() -> None:
    """Each would serve more requests of the other one, within its longer objective."""
    late = Asked(0, 5, 1, 15.0, lambda n: 0.0, lambda n: 3.0 * n)
    just = Asked(0, 5, 1, 10.0, lambda n: 2.0 * n)
    assert shared([late, just], 6) == [1, 5]


def test_workers_kept_for_a_batch_take_no_gpus_that_serve_clients() -> None:
    """Each more of them serves a trifle more requests in time."""
    batch_demand = Asked(1, 12, 1, 5.0, lambda n: 5.0 - 1e-9 / n, aside=10)
    late = Asked(1, 9, 1, 20.0, lambda n: 0.0, lambda n: 2.0 * n)
    assert shared([batch_demand, late], 12) == [3, 9]


def test_a_batch_keeps_workers_in_the_second_place() -> None:
    """The needs of clients come first for GPUs."""
    batch_pool, slow = pool(12, pool=PoolId("a"), model="a", aside=True), replace(SPEED, step_s=OBJECTIVE.itl_s * 1.03)
    late = pool(1, pool=PoolId("b"), model="b", speed=slow)
    traffic, bound = {"a": steady(5), "b": steady(50)}, {batch_pool.pool: 12, late.pool: 60}
    plans = decide(600.0, traffic, [batch_pool, late], dict.fromkeys("ab", OBJECTIVE), ScaleLimits({}, bound, None))
    assert plans[0].reason == "batch"
    gpus = plans[1].workers + 2
    bounded_plans = decide(
        600.0, traffic, [batch_pool, late], dict.fromkeys("ab", OBJECTIVE), ScaleLimits({}, bound, gpus)
    )
    assert [one.workers for one in bounded_plans] == [2, plans[1].workers]


def test_a_first_token_that_is_late_makes_no_others_late() -> None:
    """Only the time that workers miss is planned for as a longer one."""
    demand, speed = Demand([(2000.0, 1.0)], [(1000.0, 1.0)]), Speed(2000.0, 0.015, 0.0008, 128, 60.0)
    objective = attainable(Objective(0.3, 0.04), demand, pool(1, speed=speed))
    assert objective.itl_s == 0.04
    assert 1.2 < objective.ttft_s < 1.4
    objective = attainable(Objective(2.0, 0.01), demand, pool(1, speed=speed))
    assert objective.ttft_s == 2.0
    assert 0.015 < objective.itl_s < 0.025


@pytest.mark.parametrize("least", [0, 1])
def test_pools_that_can_not_serve_in_time_share_gpus_by_what_they_come_near_to(least: int) -> None:
    """The pool with the most traffic otherwise took what the other one is served with at all."""
    slow = replace(SPEED, step_s=OBJECTIVE.itl_s * 1.03)
    pools = [pool(12, pool=PoolId(name), model=name, speed=slow) for name in "ab"]
    traffic = {"a": steady(120), "b": steady(50)}
    limits = ScaleLimits({p.pool: least for p in pools}, {p.pool: 60 for p in pools})
    objectives = dict.fromkeys("ab", OBJECTIVE)
    alone = [one.workers for one in decide(600.0, traffic, pools, objectives, limits)]
    gpus = sum(alone) - 3
    bound = ScaleLimits(limits.least, limits.most, gpus)
    shares = [one.workers for one in decide(600.0, traffic, pools, objectives, bound)]
    assert sum(shares) == gpus
    assert all(has >= 0.7 * wants for has, wants in zip(shares, alone, strict=True))


def test_answers_without_a_token_and_workers_without_a_seat_end_no_round() -> None:
    empty = Demand(DEMAND.prompts, [(0.0, 1.0)])
    assert 0 < attained(1.0, 1, empty, SPEED, OBJECTIVE, "both") <= 1
    assert plan(steady(5), pool(2, speed=replace(SPEED, seats=0)), 1, 5).workers >= 1


def test_pools_without_gpus_cost_none() -> None:
    cpu = Asked(1, 3, 0, 1.0, lambda n: 1.0 * n)
    assert shared([cpu, Asked(1, 9, 1, 5.0, lambda n: 1.0 * n)], 4) == [3, 4]


def test_lines_of_batches_keep_workers_that_traffic_no_longer_needs():
    quiet = steady(1)
    assert plan(quiet, pool(4)).workers == 1
    pool_plan = plan(quiet, pool(4, aside=True))
    assert (pool_plan.workers, pool_plan.reason) == (4, "batch")


def test_a_pool_without_measured_speed_keeps_its_workers_or_gets_one_for_whoever_comes():
    no_speed = replace(SPEED, step_s=0.0, prefill_tokens_per_s=0.0)
    assert plan(steady(2), pool(3, speed=no_speed)).workers == 3
    running = replace(pool(0, speed=no_speed), workers=pool(2).workers)
    assert (len(running.workers), plan(steady(2), running).workers) == (2, 2)
    first = plan(steady(2), pool(0, speed=no_speed))
    assert (first.workers, first.reason) == (1, "unmeasured")
    assert plan(steady(0), pool(0, speed=no_speed)).workers == 0


def test_nobody_comes_and_least_says_nothing_so_there_are_no_workers():
    assert plan(steady(5, 30) + [window(300 + i * 10.0, 0) for i in range(120)], pool(2)).workers == 0


def test_what_was_missed_tightens_a_plan_and_what_was_not_loosens_it():
    good, exact, bad = (least_share(steady(10, missed=m), OBJECTIVE) for m in (0, 1, 3))
    assert good < exact <= OBJECTIVE.share + 1e-9 < bad
    assert good == pytest.approx(0.8)


@given(st.lists(st.integers(1, 200_000), min_size=1, max_size=300))
def test_a_histogram_keeps_its_mean(lengths):
    distribution = points(histogram(lengths))
    assert mean(distribution) == pytest.approx(sum(lengths) / len(lengths))
    assert sum(share for _, share in distribution) == pytest.approx(1)


def test_a_steady_rate_is_expected_to_stay():
    soon, later = forecast(steady(7, 200), 40, 80)
    assert soon.rate == pytest.approx(7, rel=0.01)
    assert later.rate == pytest.approx(7, rel=0.01)


def test_a_steady_rise_is_expected_to_go_on():
    rising = [window(i * 10.0, 20 + i) for i in range(200)]
    soon, later = forecast(rising, 60, 120)
    assert (soon.kind, soon.rate) == ("trend", pytest.approx((20 + 199 + 6.5) / 10, rel=0.05))
    assert later.rate > soon.rate


def test_what_came_at_this_time_yesterday_is_expected_again():
    def at(second: float) -> float:
        return 10 + 8 * math.sin(second * 2 * math.pi / 14400)

    now = 2 * DAY_S
    coarse = [window(t, round(at(t + 150) * 300), 300.0) for t in range(0, int(now) - 3600, 300)]
    fine = [window(now - 3600 + i * 10.0, round(at(now - 3600 + i * 10.0) * 10)) for i in range(360)]
    soon, _ = forecast([*coarse, *fine], 600, 600)
    assert soon.kind == "yesterday"
    assert soon.rate == pytest.approx(at(now + 600), rel=0.2)


def test_prefill_and_decode_pools_are_planned_for_their_own_part():
    pools = [pool(1, pool=PoolId("p"), role="prefill"), pool(1, pool=PoolId("d"), role="decode")]
    limits = ScaleLimits({p.pool: 1 for p in pools}, {p.pool: 50 for p in pools})
    prefill, decode = decide(600.0, {"m": steady(30)}, pools, {"m": OBJECTIVE}, limits)
    both = plan(steady(30), pool(1))
    assert 1 <= prefill.workers < both.workers
    assert 1 < decode.workers <= both.workers
