"""Abilities of engines: none is asked for a grammar, a seed or a prompt that it can't do."""

from random import Random
from typing import Any

import msgspec
import pytest

from app.dispatch.event_queue import EventQueue
from app.dispatch.inflight import InFlight, RoutingHints
from app.dispatch.placing.placement_round import PlacementRound
from app.errors import NoWorker, RequestError
from app.ids import ApiId, PoolId, RequestId, WorkerId
from app.kv.groups import grids_of
from app.messages.job import Grammar, Job, PartialOutput, Sampling
from app.messages.kinds import GrammarKind, Role
from app.messages.lease import Lease, Load, Worker, decode_lease
from app.messages.wire import encode
from app.pools.schema import Pool
from app.routing.candidates import Candidate, PlaceLimits
from tests.leases import pool_view
from tests.refusals import refused

POOL = PoolId("pool")
POOLS = {POOL: Pool.model_validate({"model": "m", "engine": "mock", "routing": {"policy": "least_loaded"}})}
TAG = Grammar("tag", "{}")


def worker(name: str, *grammars: GrammarKind, draining: bool = False) -> Candidate:
    instance = Worker(WorkerId(name), POOL, "both", "host", 1, 16, 1000, 8, 4096, grammars=list(grammars))
    return Candidate(Lease(instance, draining=draining), PlaceLimits(max_queued=4))


async def placed(grammar: Grammar | None, *workers: Candidate, **sampling: Any) -> str:
    job = Job(RequestId("r"), 0, ApiId("a"), [1, 2], Sampling(max_tokens=8, grammar=grammar, **sampling), 2e9)
    inflight = InFlight(job, ((POOL,),), EventQueue(), RoutingHints())
    round_ = PlacementRound([inflight], POOLS, grids_of(POOLS))
    round_.views = {POOL: pool_view(workers)}
    return round_.decide(inflight, Random(1), 0)["decode"].placement.worker


PREFILL = PoolId("prefill")
APART = POOLS | {PREFILL: Pool.model_validate({"model": "m", "engine": "mock", "role": "prefill"})}


def one_of_two(name: str, pool: PoolId, role: Role, **changes: Any) -> Candidate:
    """SGLang's kind: it meets the other in a room, and as the one that decodes computes no prompt."""
    instance = Worker(
        WorkerId(name), pool, role, "host", 1, 16, 1000, 8, 4096, block_bytes=1, computes=role == "prefill"
    )
    limits = PlaceLimits(max_queued=4, remote_tokens=10**6)
    return Candidate(Lease(msgspec.structs.replace(instance, **changes), Load(aside_most=1)), limits)


async def stages(decodes: Candidate, *prefills: Candidate, aside: bool = False, **changes: Any) -> dict[str, str]:
    sampling = Sampling(max_tokens=8, **changes.pop("sampling", {}))
    job = Job(RequestId("r"), 0, ApiId("a"), [1, 2], sampling, 2e9, aside=aside, **changes)
    inflight = InFlight(job, ((POOL,),), EventQueue(), RoutingHints(), ((PREFILL,),))
    round_ = PlacementRound([inflight], APART, grids_of(APART))
    round_.views = {POOL: pool_view([decodes]), PREFILL: pool_view(prefills)}
    return {kind: decision.placement.worker for kind, decision in round_.decide(inflight, Random(1), 0).items()}


async def test_who_computes_no_prompts_gets_none_however_short_it_is() -> None:
    """A worker gets neither an answer that goes on, nor one that gives way, if it computes no prompts."""
    decodes = one_of_two("d", POOL, "decode")
    prefills = [one_of_two("in sequence", PREFILL, "prefill"), one_of_two("p", PREFILL, "prefill", meets_at="h:1")]
    for how in ({}, {"begun": [PartialOutput([3], 1)]}, {"aside": True}):
        assert await stages(decodes, *prefills, **how) == {"prefill": "p", "decode": "d"}
    with pytest.raises(NoWorker, match="serves this model"):
        await stages(decodes, prefills[0])
    with pytest.raises(RequestError, match="logprobs of a prompt"):
        await stages(decodes, *prefills, sampling={"prompt_logprobs": 1})
    alone = one_of_two("d", POOL, "decode", computes=True)
    assert await stages(alone, *prefills) == {"decode": "d"}


async def test_seeds_go_where_they_are_honoured_or_nowhere() -> None:
    """A request without temperature has nothing to draw, and any worker may have it."""
    seeded_worker, free = worker("seeded"), worker("free")
    free = msgspec.structs.replace(free, lease=Lease(msgspec.structs.replace(free.lease.worker, seeds=False)))
    busy = msgspec.structs.replace(seeded_worker, requests=3)
    assert await placed(None, free, busy, seed=7) == "seeded"
    for settings in ({"seed": 7, "temperature": 0.0}, {}):
        assert await placed(None, free, busy, **settings) == "free"
    with refused("seed", "sample differently"):
        await placed(None, free, seed=7)


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


def test_a_lease_of_a_version_before_names_no_grammars_and_can_do_the_rest() -> None:
    worker_fields, *others = msgspec.msgpack.decode(encode(worker("w", "json").lease))
    older = msgspec.msgpack.encode(
        [worker_fields[: worker_fields.index("w") + Worker.__struct_fields__.index("grammars")], *others]
    )
    old = decode_lease(older).worker
    assert (old.grammars, old.seeds, old.computes) == ([], True, True)
