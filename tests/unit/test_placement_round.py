"""Who is held to a grammar goes to engines that know it, and to no others."""

from random import Random

import msgspec
import pytest

from app.dispatch.event_queue import EventQueue
from app.dispatch.fleet_reader import PoolView
from app.dispatch.inflight import InFlight, RoutingHints
from app.dispatch.placement_round import PlacementRound
from app.errors import NoWorker, RequestError
from app.ids import ApiId, PoolId, RequestId, WorkerId
from app.messages import Grammar, GrammarKind, Job, Lease, Sampling, Worker, decode_lease, encode
from app.pools import Pool
from app.routing.candidates import Candidate, Limits

POOL = PoolId("pool")
POOLS = {POOL: Pool.model_validate({"model": "m", "engine": "mock", "routing": {"policy": "least_loaded"}})}
TAG = Grammar("tag", "{}")


def worker(name: str, *grammars: GrammarKind, draining: bool = False) -> Candidate:
    made = Worker(WorkerId(name), POOL, "both", "host", 1, 16, 1000, 8, 4096, grammars=list(grammars))
    return Candidate(Lease(made, draining=draining), Limits(max_queued=4))


async def placed(grammar: Grammar | None, *workers: Candidate) -> str:
    job = Job(RequestId("r"), 0, ApiId("a"), [1, 2], Sampling(max_tokens=8, grammar=grammar), 2e9)
    inflight = InFlight(job, ((POOL,),), EventQueue(), RoutingHints())
    round_ = PlacementRound([inflight], POOLS)
    round_.views = {POOL: PoolView(list(workers), [])}
    return round_.decide(inflight, Random(1), 0)["decode"].placement.worker


async def test_a_worker_that_knows_the_kind_gets_it_however_busy_the_others() -> None:
    """One of an older version would answer as if nothing had been asked."""
    busy = msgspec.structs.replace(worker("new", "json", "tag"), requests=3)
    for _ in range(20):
        assert await placed(TAG, worker("old"), busy, worker("half", "json")) == "new"
    assert await placed(None, worker("old"), busy) == "old"


async def test_without_such_a_worker_it_waits_for_an_upgrade_or_is_refused() -> None:
    """An upgrade brings workers that know grammars; one that knows some, but not this kind, never will."""
    with pytest.raises(NoWorker, match="holds answers to a format"):
        await placed(TAG, worker("old"))
    with pytest.raises(RequestError, match="'tag'"):
        await placed(TAG, worker("old"), worker("half", "json"))
    with pytest.raises(NoWorker):
        await placed(TAG, worker("half", "json"), worker("new", "tag", draining=True))
    with pytest.raises(NoWorker, match="serves this model"):
        await placed(TAG)


def test_a_lease_of_a_version_before_names_no_grammars() -> None:
    known, *others = msgspec.msgpack.decode(encode(worker("w", "json").lease))
    older = msgspec.msgpack.encode([known[: known.index("w") + Worker.__struct_fields__.index("grammars")], *others])
    assert decode_lease(older).worker.grammars == []
