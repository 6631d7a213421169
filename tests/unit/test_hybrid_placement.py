"""Placing prompts of models that can be resumed at some points only, and what is foretold of their cached tokens."""

import time
from random import Random
from types import SimpleNamespace
from typing import Any

import structlog
from msgspec.structs import replace

from app.dispatch.inflight import InFlight
from app.dispatch.placing.placement_commands import expected_tokens, prediction
from app.dispatch.placing.placement_round import PlacementRound
from app.engines.base import EngineInfo
from app.ids import WorkerId
from app.keys import Keys
from app.kv.blocks import point_hashes
from app.kv.groups import why_by_load
from app.messages.handoff import KvHandle
from app.messages.job import PartialOutput, Sampling
from app.messages.lease import CacheGroup, Grid, Lease
from app.routing.candidates import Candidate, PlaceLimits, Placement
from tests import leases
from tests.jobs import POOL, in_flight, job
from tests.models import mock
from workers.engine.kv_indices import kv_indices, why_unindexed

POOLS = {POOL: mock()}
LINES = Grid(16, 32, everywhere=False)  # a step has two blocks
PLACE = Placement(POOL, WorkerId("w"), 0, 4, 36, 4)


def lease(grid: Grid | None = LINES, **worker: Any) -> Lease:
    return leases.lease(caches=[7], **{"kv_events": True, "grid": grid} | worker)


def asked(prompt: list[int], **fields: Any) -> InFlight:
    return in_flight(job(prompt, f"r{len(prompt)}", deadline=time.time() + 60, **fields))


def coming(first: list[int], second: list[int], grid: Grid | None = LINES, leaves: int = 0) -> dict[int, int]:
    """Blocks that the first prompt, placed just before, will leave for the second."""
    requests = [asked(first), asked(second)]
    round_ = PlacementRound(requests, POOLS, {POOL: LINES})
    round_.views = {POOL: leases.pool_view([Candidate(lease(grid, leaves=leaves), PlaceLimits(4))])}
    round_.decide(requests[0], Random(0), 0)
    return dict(round_.matches(requests[1], POOL).coming)


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
    assert (why[256], why[32]) == (why[0], "")
    assert "none of its layers sees all tokens" in why[0]
    assert "routing by load only" in why_by_load(lease(unindexed=why[0]), LINES)


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
    prompt, fine = list(range(100)), Grid(16, 16)

    def foretold(asked_prompt: list[int], grid: Grid = LINES, **worker: Any) -> Any:
        of = lease(grid, kv_events=False, **worker)
        return prediction(Keys("test"), POOLS[POOL], grid, asked(asked_prompt), PLACE, of)

    points = point_hashes(prompt, LINES)
    add, *_ = foretold(prompt)
    assert (add[0], add[3::2]) == ("ZADD", (points[-8:],))
    assert len(foretold(prompt, fine)[0][3::2]) == 6
    assert foretold(prompt, leaves=64)[0][3::2] == (points[8:16], points[16:])
    assert foretold([1, 2]) == []


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
