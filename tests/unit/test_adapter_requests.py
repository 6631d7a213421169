"""Requests for adapters: where they go, which version they get, and what they are told."""

from random import Random
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from app.dispatch.inflight import InFlight
from app.dispatch.models.adapter_table import AdapterTable
from app.dispatch.models.models import find_model
from app.errors import AdapterFailed, AdapterLoading, ModelNotFound, NoWorker, Saturated
from app.ids import PoolId, WorkerId
from app.keys import Keys
from app.messages.handoff import KvHandle
from app.messages.job import Sampling
from app.messages.lease import AdapterReport, Grid, Lease, Worker, decode_lease
from app.messages.wanted import Adapter
from app.messages.wire import encode
from app.routing.candidates import Candidate
from app.runner.adapters_in_use import AdaptersInUse
from app.store import Wire
from tests.jobs import POOL, in_flight, job, placing
from tests.leases import candidate
from tests.models import mock, models_of

OTHER = PoolId("other")
POOLS = {POOL: mock(), OTHER: mock()}
SQL = Adapter("sql", 2, "m", "/x")


def worker(name: str, *adapters: str, slots: int = 4, **fields: Any) -> Candidate:
    report = {name: fields.pop(name) for name in ("failed", "load_s") if name in fields}
    place = candidate(name, max_adapters=slots, **fields)
    changes = {"worker": replace(place.lease.worker, adapters=list(adapters)), "adapters": AdapterReport(**report)}
    return replace(place, lease=replace(place.lease, **changes))


def request(adapter: Adapter | None, prefill: PoolId | None = None, **fields: Any) -> InFlight:
    of = in_flight(job(range(64), adapter=adapter.versioned if adapter else None, **fields), prefill=prefill)
    if adapter:
        of.attempt = of.attempt.with_adapter(adapter)
    return of


def decided(adapter: Adapter | None, *workers: Candidate) -> tuple[str, set[tuple[WorkerId, str]]]:
    """The placement, or the reason for having none; and the workers that are asked to load."""
    inflight = request(adapter)
    round_ = placing([inflight], POOLS, {POOL: workers})
    try:
        return round_.decide(inflight, Random(1), 0)["decode"].placement.worker, round_.asks
    except (NoWorker, AdapterFailed, Saturated) as exc:
        return exc.code + ": " + exc.message, round_.asks


async def test_a_request_goes_only_where_this_version_of_its_adapter_is() -> None:
    """Load doesn't matter: other workers would answer as the model does, or with old weights."""
    busy = worker("has", "sql@2", requests=3)
    for _ in range(10):
        assert decided(SQL, worker("old", "sql@1"), busy, worker("none")) == ("has", set())
    assert decided(None, worker("old"))[0] == "old"


async def test_where_nobody_has_it_the_worker_that_has_it_soonest_is_asked() -> None:
    """The choice follows the workers' load and the time that loading takes; the request waits."""
    slow = worker("slow", load_s=3.0)
    message, load_requests = decided(SQL, slow, worker("fast", load_s=0.1), worker("none", slots=0))
    assert message.startswith("adapter_loading: The adapter 'sql' is being loaded")
    assert load_requests == {("fast", "sql@2")}
    for fields in ({"tokens": 90_000}, {"failed": {"sql@2": "why"}}):
        assert decided(SQL, slow, worker("fast", load_s=0.1, **fields))[1] == {("slow", "sql@2")}


async def test_of_those_that_are_asked_each_can_do_the_rest_of_what_it_wants() -> None:
    """A worker that has the adapter, but samples differently each time, doesn't keep another from loading it."""
    seeded_request = request(SQL, sampling=Sampling(max_tokens=8, seed=1, temperature=1.0))
    round_ = placing([seeded_request], POOLS, {POOL: [worker("has", "sql@2", seeds=False), worker("other")]})
    with pytest.raises(AdapterLoading, match="is being loaded"):
        round_.decide(seeded_request, Random(1), 0)
    assert round_.asks == {("other", "sql@2")}


@pytest.mark.parametrize(
    ("decoding", "computing", "asked"),
    [((), (), {"d", "p"}), (("sql@2",), (), {"p"}), ((), ("sql@2",), {"d"}), (("sql@2",), ("sql@2",), set())],
)
async def test_where_decode_workers_compute_no_prompts_a_prefill_worker_has_it_too(
    decoding: tuple[str, ...], computing: tuple[str, ...], asked: set[str]
) -> None:
    """A prefill worker must have it, or the prompt would never be computed."""
    decodes = worker("d", *decoding, role="decode", computes=False, block_bytes=64)
    prefills = worker("p", *computing, pool=OTHER, role="prefill", block_bytes=64, meets_at="host:1")
    inflight = request(SQL, OTHER)
    round_ = placing([inflight], POOLS, {POOL: [decodes], OTHER: [prefills]})
    if asked:
        with pytest.raises(AdapterLoading, match="is being loaded"):
            round_.decide(inflight, Random(1), 0)
    else:
        assert list(round_.decide(inflight, Random(1), 0)) == ["prefill", "decode"]
    assert {name for name, _ in round_.asks} == asked


async def test_it_is_told_at_once_if_nobody_can_load_it() -> None:
    failures = {"sql@2": "its rank is 99"}
    assert decided(SQL, worker("a", failed=failures), worker("b", failed=failures)) == (
        "adapter_failed: The adapter 'sql' can't be loaded. An admin sees why: /admin/loras.", set()
    )  # fmt: skip
    assert decided(SQL, worker("a", slots=0))[0].startswith("adapter_failed: No worker")
    assert decided(replace(SQL, pools=[OTHER]), worker("a"))[0].startswith("adapter_failed: No worker")
    assert decided(SQL)[0].startswith("no_worker: No live worker")
    assert decided(SQL, worker("a", failed={"sql@1": "an older one"}))[1] == {("a", "sql@2")}


async def test_a_full_worker_is_waited_for_and_nobody_else_is_asked() -> None:
    assert decided(SQL, worker("has", "sql@2", requests=100), worker("none"))[0].startswith("saturated")


async def test_another_version_shares_no_kv_and_its_lines_are_apart() -> None:
    """A handoff of the old version doesn't count either; the model's own requests don't wait behind an adapter's."""
    one = request(SQL)
    before = one.attempt.hashes(Grid(16, 16))
    assert before != request(None).attempt.hashes(Grid(16, 16))
    attempt = replace(one.attempt, handoff=KvHandle("h", 2e9, 64, {})).with_adapter(SQL)
    assert attempt.handoff is not None
    one.attempt = attempt.with_adapter(replace(SQL, version=3))
    assert (one.job.adapter, one.attempt.handoff) == ("sql@3", None)
    assert one.attempt.hashes(Grid(16, 16)) != before
    assert len({request(None).line, one.line, request(replace(SQL, name="other")).line}) == 3
    assert one.line == request(SQL).line


class _Store:
    """The part of Redis that the table reads."""

    def __init__(self) -> None:
        self.version, self.adapters = b"1", list[Adapter]()
        self.reads = 0

    async def execute(self, commands: list[tuple[str, str]]) -> list[Any]:
        if commands[0][0] == "GET":
            return [self.version]
        self.reads += 1
        return [[x for a in self.adapters for x in (a.name.encode(), encode(a))]]


async def test_adapters_are_models_while_they_are_wanted() -> None:
    """Redis is read whole only when something has changed."""
    models = models_of(**POOLS)
    store = _Store()
    table = AdapterTable(cast(Wire, store), Keys("x"), models)
    only = replace(SQL, name="only", pools=[OTHER])
    store.adapters = [SQL, only, replace(SQL, name="m"), replace(SQL, name="x", model="nobody")]
    for _ in range(3):
        await table.refresh()
    assert store.reads == 1
    assert sorted(models) == ["m", "only", "sql"]
    assert (models["sql"].adapter, models["sql"].parent, models["sql"].pools) == ("sql@2", "m", (POOL, OTHER))
    assert models["only"].pools == (OTHER,)
    assert models["m"].adapter is None
    store.version, store.adapters = b"2", [replace(SQL, version=5)]
    await table.refresh()
    assert (sorted(models), models["sql"].adapter) == (["m", "sql"], "sql@5")
    assert table.current("sql") == store.adapters[0]
    assert table.current("only") is None
    with pytest.raises(ModelNotFound):
        find_model(models, "only")


def test_a_worker_refuses_a_version_that_it_does_not_have_any_more() -> None:
    """The sender could not know: the request goes back, and running requests go on."""
    in_use, idle = AdaptersInUse(), []
    in_use.on_idle = lambda: idle.append(1)
    of_sql = request(SQL).job
    assert not in_use.has(of_sql)
    in_use.admit("sql@2")
    assert in_use.has(of_sql)
    with in_use.of(of_sql), in_use.of(of_sql):
        assert in_use.report().requests == {"sql@2": 2}
        in_use.refuse("sql@2")
        assert not in_use.has(of_sql)
        assert in_use.use("sql@2").requests == 2
    assert idle == [1]
    assert in_use.report().requests == {}
    assert in_use.has(request(None).job)
    with in_use.of(request(None).job):
        assert in_use.report().requests == {}


def test_a_lease_of_a_version_before_names_no_adapters() -> None:
    worker_, *others = msgspec.msgpack.decode(encode(worker("w", "a@1").lease))
    before = worker_.index("w") + Worker.__struct_fields__.index("max_adapters")
    others = others[: Lease.__struct_fields__.index("adapters") - 1]
    older = decode_lease(msgspec.msgpack.encode([worker_[:before], *others]))
    assert (older.worker.adapters, older.worker.max_adapters, older.adapters) == ([], 0, AdapterReport())
