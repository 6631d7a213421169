"""Tests what the planner sees of the deployment, what the next one knows, and what it tells; over a real Redis."""

from collections.abc import Sequence

from redis.asyncio import Redis

from app.batch.batch_store import BatchStore
from app.batch.records import BatchOrder
from app.dispatch.event_queue import EventQueue
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.inflight import InFlight, RoutingHints
from app.dispatch.models.models import load_models
from app.dispatch.observing.traffic import TrafficCounter
from app.errors import ScalingFailed
from app.ids import ApiId, FileId, KeyId, PoolId, RequestId, WorkerId, new_batch_id
from app.keys import Keys
from app.messages.events import Delta, Done
from app.messages.job import Job, Sampling
from app.messages.lease import EngineState, Speeds, Worker
from app.planner.desired import Desired, decode_desired
from app.planner.observed import EDGES, SeenPool, Traffic
from app.planner.rules import objectives_of
from app.pools.schema import PoolsFile
from app.settings import load_settings
from app.store import Wire
from tests.integration.conftest import POOL, register
from workers.planner.observation import Observation
from workers.planner.process import Planner
from workers.planner.traffic_history import TrafficHistory

KEYS = Keys("xylem")
SCALED = {"model": "m", "engine": "mock", "scale": {"least": 1, "most": 4, "gpus": 2}}
DECLARED = PoolsFile.model_validate({
    "pools": {POOL: SCALED, "other": {"model": "other", "engine": "mock"}},
    "planner": {"objectives": {"m": {"ttft_s": 0.5, "itl_s": 0.05}}},
})  # fmt: skip
OBJECTIVES = objectives_of(DECLARED)
MODEL = load_models(DECLARED)["m"]
NOW = 1_000_000_200.0  # a window of ten seconds begins here, and one of five minutes


def request(prompt: int, answer: int, cached: int = 0, **more: object) -> tuple[GenerationPlan, InFlight, Done]:
    plan = GenerationPlan("cmpl-", MODEL, [[1] * prompt], [Sampling(answer)], 60, **more)  # type: ignore[arg-type]
    job = Job(RequestId("r"), 0, ApiId("a"), [1] * prompt, Sampling(answer), NOW + 60)
    inflight = InFlight(job, (), EventQueue(), RoutingHints())
    inflight.out[0].add(Delta(RequestId("r"), 0, "", [1] * answer, finish="length"))
    return plan, inflight, Done(RequestId("r"), 0, cached)


class Replica:
    """Counts in one window after another, as a running API replica does."""

    def __init__(self, wire: Wire, name: str) -> None:
        self.counter = TrafficCounter(wire, KEYS, ApiId(name), OBJECTIVES)
        self.counter.counts = {}

    def answer(self, prompt: int, answer: int, cached: int = 0, *, ttft_s: float = 0.1, **more: object) -> None:
        plan, inflight, end = request(prompt, answer, cached, **more)
        self.counter.came(plan)
        self.counter.ended(plan, "ok", [inflight], [end], ttft_s, 0.02)

    async def tell(self, begin: float) -> None:
        counts, self.counter.counts = self.counter.counts, {}
        assert counts is not None
        await self.counter._write(int(begin // 10), counts)


def history(wire: Wire) -> TrafficHistory:
    return TrafficHistory(wire, KEYS, ["m"])


def told(windows: Sequence[Traffic]) -> list[tuple[float, float, int]]:
    return [(window.begin - NOW, window.seconds, window.arrivals) for window in windows]


async def test_replicas_are_counted_together_and_aside_requests_are_not(wire: Wire) -> None:
    one, two = Replica(wire, "a"), Replica(wire, "b")
    one.answer(100, 7, cached=36)
    one.answer(100, 5, aside=True)
    two.answer(3, 7, ttft_s=0.6)
    two.counter.came(request(1, 1)[0])
    for replica in (one, two):
        await replica.tell(NOW)
    traffic = history(wire)
    await traffic.load()
    await traffic.read(NOW + 12)
    (window,) = traffic.of("m")
    assert (window.arrivals, window.ended, window.met) == (3, 2, 1)
    assert (window.prompts.total, window.answers.total) == (67, 14)
    assert window.prompts.counts[EDGES.index(64)] == 1
    assert sum(window.prompts.counts) == sum(window.answers.counts) == 2


async def test_a_refused_request_came_and_missed_the_objective_and_one_whose_client_left_only_came(wire: Wire) -> None:
    replica = Replica(wire, "a")
    plan, inflight, _ = request(10, 1)
    for outcome in ("saturated", "cancelled"):
        replica.counter.came(plan)
        replica.counter.ended(plan, outcome, [inflight], [], None, 0.0)
    await replica.tell(NOW)
    traffic = history(wire)
    await traffic.load()
    await traffic.read(NOW + 12)
    (window,) = traffic.of("m")
    assert (window.arrivals, window.ended, window.met, sum(window.prompts.counts)) == (2, 1, 0, 0)


async def test_the_next_planner_knows_what_the_last_one_has_seen(wire: Wire) -> None:
    """A window without requests is one of none; one that nobody counted isn't there. Five minutes are summed up."""
    replica, first = Replica(wire, "a"), history(wire)
    await first.load()
    for begin in (0, 10, 20, 290, 300):
        for _ in range(begin // 10):
            replica.answer(10, 1)
        await replica.tell(NOW + begin)
        await first.read(NOW + begin + 12)
    short = [(0, 10, 0), (10, 10, 1), (20, 10, 2), (290, 10, 29), (300, 10, 30)]
    assert told(first.of("m")) == short
    second = history(wire)
    await second.load()
    assert second.of("m") == first.of("m")
    await second.read(NOW + 313)
    assert told(second.of("m")) == short
    await second.load()
    await replica.tell(NOW + 3900)
    await second.read(NOW + 3912)
    assert told(second.of("m")) == [(0, 40, 32), (300, 10, 30), (3900, 10, 0)]
    assert {int(begin) for begin in await hash_of(wire, 10)} == {NOW + 3900}


async def hash_of(wire: Wire, seconds: int) -> list[bytes]:
    (begins,) = await wire.execute([("HKEYS", KEYS.traffic_of("m", seconds))])
    return list(begins)


async def test_counts_of_another_version_are_left_out(wire: Wire) -> None:
    replica, traffic = Replica(wire, "a"), history(wire)
    replica.answer(10, 1)
    await replica.tell(NOW)
    await wire.execute([("HSET", KEYS.traffic(int(NOW // 10)), "b", b"\xc1")])
    await traffic.load()
    await traffic.read(NOW + 12)
    assert told(traffic.of("m")) == [(0, 10, 1)]


async def observed(wire: Wire) -> SeenPool:
    (pool,) = await Observation(wire, KEYS, {POOL: DECLARED.pools[POOL]}, 1024).read()
    return pool


async def test_workers_are_seen_with_their_speeds_load_and_state(wire: Wire, redis: Redis) -> None:
    speeds = Speeds(prefill_tokens_per_s=1000.0, step_s=0.02, request_step_s=0.001, reused_tokens_per_s=50.0)
    await register(redis, KEYS, "w1", ranks=2, speeds=speeds, start_s=20.0)
    await register(redis, KEYS, "w2", ranks=2, draining=True)
    await register(redis, KEYS, "w3", ranks=2, draining=True, state=EngineState(asleep=1))
    pool = await observed(wire)
    assert (pool.pool, pool.model, pool.role, pool.gpus, pool.aside) == (POOL, "m", "both", 2, False)
    assert {w.id: (w.ready, w.draining) for w in pool.workers} == {
        "w1": (True, False), "w2": (False, True), "w3": (False, False),
    }  # fmt: skip
    assert next(w for w in pool.workers if w.id == "w1").reused_tokens_per_s == 100.0
    speed = pool.speed
    assert (speed.prefill_tokens_per_s, speed.step_s, speed.request_step_s) == (2000.0, 0.02, 0.0005)
    assert (speed.seats, speed.start_s) == (16, 20.0)
    assert pool.wanted == 2  # no plan yet: those that don't end


async def test_a_pool_without_workers_has_the_speed_that_it_had(wire: Wire, redis: Redis) -> None:
    """The next planner knows the speed too."""
    await register(redis, KEYS, "w1", speeds=Speeds(prefill_tokens_per_s=1000.0, step_s=0.02), start_s=20.0)
    before = await observed(wire)
    await redis.delete(KEYS.worker(WorkerId("w1")), KEYS.pool(POOL))
    after = await observed(wire)
    assert (len(after.workers), after.speed) == (0, before.speed)


async def test_lines_that_wait_are_seen_before_any_worker_has_one(wire: Wire, redis: Redis) -> None:
    store = BatchStore(wire, KEYS, 60)
    assert not (await observed(wire)).aside
    batch = await store.create(
        BatchOrder(new_batch_id(), KeyId(""), "/v1/completions", FileId("file-1"), "24h", 0, 2**40)
    )
    await store.set_status(batch.order.id, ("validating",), {"status": "in_progress", "model": "m", "total": 5})
    assert (await observed(wire)).aside
    await store.pause(batch.order.id, paused=True)
    assert not (await observed(wire)).aside


class Scaler:
    """Notes what it is told."""

    def __init__(self, fails: str = "") -> None:
        self.fails, self.told = fails, list[tuple[PoolId, Desired, list[str]]]()

    async def scale(self, pool: PoolId, desired: Desired, workers: Sequence[Worker]) -> None:
        self.told.append((pool, desired, [worker.id for worker in workers]))
        if self.fails:
            raise ScalingFailed(self.fails)

    async def close(self) -> None:
        pass


def planner(wire: Wire, scaler: Scaler, *, act: bool, leads: bool = True) -> Planner:
    instance = Planner(load_settings(), DECLARED, wire, scaler, 10.0, act=act)
    if leads:
        instance._leads.set()
    return instance


async def desired(wire: Wire) -> Desired | None:
    (raw,) = await wire.execute([("GET", KEYS.desired(POOL))])
    return None if raw is None else decode_desired(raw)


async def test_a_decision_keeps_its_number_until_it_is_another_one(wire: Wire, redis: Redis) -> None:
    await register(redis, KEYS, "w1")
    scaler = Scaler()
    acting = planner(wire, scaler, act=True)
    await acting.plan()
    first = await desired(wire)
    assert first is not None
    assert (first.workers, first.reason, first.act, first.drain) == (1, "unmeasured", True, [])
    await acting.plan()
    second = await desired(wire)
    assert second is not None
    assert (second.decision, second.at > first.at) == (first.decision, True)
    assert [(pool, target.workers, workers) for pool, target, workers in scaler.told] == [(POOL, 1, ["w1"])] * 2
    await planner(wire, scaler, act=False).plan()
    third = await desired(wire)
    assert third is not None
    assert (third.act, third.decision > second.decision) == (False, True)
    assert len(scaler.told) == 2


async def test_what_a_scaler_could_not_do_is_told_with_what_is_wanted(wire: Wire, redis: Redis) -> None:
    await register(redis, KEYS, "w1")
    await planner(wire, Scaler(fails="gpu1: no answer"), act=True).plan()
    target = await desired(wire)
    assert target is not None
    assert (target.workers, target.problem) == (1, "gpu1: no answer")


async def test_who_does_not_lead_any_more_tells_and_does_nothing(wire: Wire, redis: Redis) -> None:
    """The planner may have waited long for its turn."""
    await register(redis, KEYS, "w1")
    scaler = Scaler()
    await planner(wire, scaler, act=True, leads=False).plan()
    assert (await desired(wire), scaler.told) == (None, [])
