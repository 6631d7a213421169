"""Placing prompts of models that can be resumed at some points only, and what is foretold of their cached tokens."""

import time
from random import Random
from types import SimpleNamespace
from typing import Any

import structlog
from msgspec.structs import replace

from app.dispatch.event_queue import EventQueue
from app.dispatch.inflight import InFlight, RoutingHints
from app.dispatch.placing.placement_commands import expected_tokens, prediction
from app.dispatch.placing.placement_round import PlacementRound
from app.engines.base import EngineInfo
from app.ids import ApiId, PoolId, RequestId, WorkerId
from app.keys import Keys
from app.kv.blocks import point_hashes
from app.kv.groups import why_by_load
from app.messages.handoff import KvHandle
from app.messages.job import Job, PartialOutput, Sampling
from app.messages.lease import CacheGroup, Grid, Lease, Worker
from app.pools.schema import Pool
from app.routing.candidates import Candidate, PlaceLimits, Placement
from tests.leases import pool_view
from workers.engine.kv_indices import kv_indices, why_unindexed

POOL = PoolId("pool")
POOLS = {POOL: Pool(model="m", engine="mock")}
LINES = Grid(16, 32, everywhere=False)  # a step has two blocks
PLACE = Placement(POOL, WorkerId("w"), 0, 4, 36, 4)


def lease(grid: Grid | None = LINES, **worker: Any) -> Lease:
    instance = Worker(WorkerId("w"), POOL, "both", "host", 1, 16, 1000, 8, 4096, kv_events=True, grid=grid)
    return Lease(replace(instance, **worker), caches=[7])


def asked(prompt: list[int], **job: Any) -> InFlight:
    sampling = job.pop("sampling", Sampling(max_tokens=8))
    new_job = Job(RequestId(f"r{len(prompt)}"), 0, ApiId("a"), prompt, sampling, time.time() + 60, **job)
    return InFlight(new_job, ((POOL,),), EventQueue(), RoutingHints())


def coming(first: list[int], second: list[int], grid: Grid | None = LINES, leaves: int = 0) -> dict[int, int]:
    """Blocks that the first prompt, placed just before, will leave for the second."""
    in_flight = [asked(first), asked(second)]
    round_ = PlacementRound(in_flight, POOLS, {POOL: LINES})
    round_.views = {POOL: pool_view([Candidate(lease(grid, leaves=leaves), PlaceLimits(4))])}
    round_.decide(in_flight[0], Random(0), 0)
    return dict(round_._matches(in_flight[1], POOL).coming)


def test_a_prompt_of_the_same_round_leaves_its_end_and_no_point_before_it() -> None:
    prompt = list(range(70))
    assert coming(prompt, [*prompt, *range(100, 200)]) == {0: 4}
    assert coming(prompt, prompt) == {0: 4}
    assert coming(prompt, prompt[:40]) == {}, "it ends before the other's last point"
    assert coming(prompt, [*prompt[:50], *range(100, 200)]) == {}, "they part before it"
    assert coming(prompt, prompt, Grid(32, 32)) == {}, "that worker's prompts are hashed by something else"


def test_where_prompts_leave_points_before_their_end_the_last_one_that_both_have_is_coming() -> None:
    prompt = list(range(150))
    other = [*prompt[:100], *range(1000, 1100)]
    assert coming(prompt, other, leaves=32) == {0: 6}
    assert coming(prompt, other, leaves=64) == {0: 4}
    assert coming(prompt, other, leaves=128) == {}
    assert coming(prompt, [*prompt, *range(1000, 1100)], leaves=128) == {0: 8}, "the one at its end is there, too"


def test_an_engine_with_windows_alone_is_placed_by_load_unless_it_keeps_them_whole() -> None:
    why = {
        every: why_unindexed(EngineInfo(32, 100, 4, 4096, groups=(CacheGroup(0, "window", 32, 128, every),)))
        for every in (0, 256, 32)
    }
    assert why[0] == why[256]
    assert "none of its layers sees all tokens" in why[0]
    assert why[32] == ""
    unindexed_lease = lease(unindexed=why[0])
    assert "routing by load only" in why_by_load(unindexed_lease, LINES)


def test_an_engine_whose_events_cannot_be_placed_is_named_in_the_log() -> None:
    """Nothing of it is asked but that: nobody follows its events."""
    runner: Any = SimpleNamespace(index=None, keys=None)
    with structlog.testing.capture_logs() as logs:
        kv = kv_indices(runner, POOL, POOLS[POOL], EngineInfo(32, 100, 4, 4096, unindexed="it says nothing"), _never)
    assert (kv.caches, kv.feeds) == ([], [])
    assert [(line["event"], line["reason"]) for line in logs] == [("kv_events_not_placed", "it says nothing")]


async def _never() -> None:
    raise AssertionError


def test_of_an_engine_that_tells_nothing_the_last_point_is_foretold() -> None:
    inflight, keys = asked(list(range(100))), Keys("test")
    silent = lease(kv_events=False)
    add, *_ = prediction(keys, POOLS[POOL], LINES, inflight, PLACE, silent)
    assert add[0] == "ZADD"
    assert add[3::2] == (point_hashes(list(range(100)), LINES)[-8:],)
    fine = Grid(16, 16)
    every, *_ = prediction(keys, POOLS[POOL], fine, inflight, PLACE, lease(fine, kv_events=False))
    assert len(every[3::2]) == 6
    some, *_ = prediction(keys, POOLS[POOL], LINES, inflight, PLACE, lease(kv_events=False, leaves=64))
    points = point_hashes(list(range(100)), LINES)
    assert some[3::2] == (points[8:16], points[16:])
    assert prediction(keys, POOLS[POOL], LINES, asked([1, 2]), PLACE, silent) == []


def test_cached_tokens_are_foretold_where_one_worker_whose_caches_are_known_does_it_all() -> None:
    plain = asked(list(range(100)))
    assert expected_tokens(plain, [PLACE], lease(), LINES) == 64
    handoff_request = asked(list(range(100)))
    handoff_request.attempt = replace(handoff_request.attempt, handoff=KvHandle("engine", 0.0, 100, {}))
    untold = [
        (plain, [PLACE, PLACE], lease()),
        (plain, [replace(PLACE, lends=True)], lease()),
        (plain, [PLACE], replace(lease(), caches=[])),
        (plain, [PLACE], lease(Grid(32, 32))),
        (handoff_request, [PLACE], lease()),
        (asked(list(range(100)), begun=[PartialOutput([3], 1)]), [PLACE], lease()),
        (asked(list(range(100)), sampling=Sampling(max_tokens=8, prompt_logprobs=1)), [PLACE], lease()),
    ]
    assert [expected_tokens(*one, LINES) for one in untold] == [-1] * len(untold)
