"""The simulator of routing: requests of a trace, a worker's times and cache, and policies by their formulas."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ops.bench.simulator.engine import Engine
from ops.bench.simulator.policies import OWN, policy_of
from ops.bench.simulator.replay import CannotReplay, Replay, Setting
from ops.bench.simulator.requests import Trace, bounds, read_trace
from ops.bench.simulator.router import View, Views

BLOCK = 512
ENGINE = Engine(block_size=BLOCK, cache_blocks=100, step_s=0.01, request_s=0.0, token_s=0.0, prefill_per_s=1024.0)
LONG = [1, 2, 3, 4]


def row(at_ms: float, hashes: Sequence[int], answer: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "timestamp": at_ms, "input_length": BLOCK * len(hashes), "output_length": answer, "hash_ids": hashes, **more,
    }  # fmt: skip


def trace_of(path: Path, *rows: Mapping[str, Any]) -> Trace:
    file = path / "trace.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return read_trace(file, BLOCK)


def replay(trace: Trace, policy: str = "round_robin", workers: int = 1, engine: Engine = ENGINE) -> dict[str, Any]:
    return Replay(trace, Setting(engine=engine, workers=workers, pace=1.0, warm_up=0.0), policy).run()


def test_a_block_stands_for_all_before_it(tmp_path: Path) -> None:
    """Prompts share as many blocks as their beginnings have in common; without ids nothing is shared."""
    trace = trace_of(tmp_path, row(0, [1, 2]), row(1, [1, 3]), row(2, [3, 2]), row(3, [1, 3, 2]), row(4, []) | {
        "input_length": 700,
    })  # fmt: skip
    assert [request.known for request in trace.requests] == [0, 1, 0, 2, 0]
    assert len(trace.requests[4].blocks) == 2
    assert len({block for request in trace.requests for block in request.blocks}) == 2 + 1 + 2 + 1 + 2


def test_requests_of_one_time_are_spread_until_the_next_one(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, row(5000, [1]), row(5000, [2]), row(7000, [3]), row(99_000, [4]))
    assert [request.start for request in trace.heads] == [0.0, 1.0, 2.0, 94.0]
    assert not trace.is_closed


def test_a_prompt_takes_its_uncached_tokens_and_a_step(tmp_path: Path) -> None:
    """The second one waits for the first one, and finds what that has left."""
    trace = trace_of(tmp_path, row(0, LONG), row(1000, [*LONG, 5]))
    result = replay(trace)
    first, second = trace.requests
    assert first.first - first.arrival == pytest.approx(4 * BLOCK / 1024 + 0.01)
    assert (second.hit, second.hit_tokens) == (4, 4 * BLOCK)
    assert second.first == pytest.approx(first.first + BLOCK / 1024 + 0.01)
    assert result["hit"] == 4 / 9


def test_a_token_of_an_answer_takes_a_step_and_beside_a_prompt_its_chunk(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, row(0, [1], answer=11), row(60_000, [2], answer=2))
    replay(trace)
    first = trace.requests[0]
    assert first.done - first.first == pytest.approx(10 * 0.01)
    trace = trace_of(tmp_path, row(0, [1], answer=3), row(510, [2] * 8, answer=1))
    replay(trace)
    first = trace.requests[0]
    assert first.done - first.first == pytest.approx(2 * ENGINE.chunk / 1024)


def test_the_cache_loses_what_was_not_used_for_longest(tmp_path: Path) -> None:
    """Leaves go first, and running requests keep what they have."""
    small = Engine(block_size=BLOCK, cache_blocks=6, prefill_per_s=1e6)
    rows = [
        row(0, [1, 2, 3]),
        row(10_000, [4, 5]),
        row(20_000, [1, 2, 3]),
        row(30_000, [6, 7, 8]),
        row(40_000, [1, 2, 3]),
    ]
    trace = trace_of(tmp_path, *rows)
    replay(trace, engine=small)
    assert [request.hit for request in trace.requests] == [0, 0, 3, 0, 2]
    with pytest.raises(CannotReplay, match="needs 7 blocks"):
        replay(trace_of(tmp_path, row(0, [1, 2, 3, 4, 5, 6])), engine=small)


def test_a_store_spares_what_another_worker_has_computed(tmp_path: Path) -> None:
    """A block that takes longer to load than to compute is computed."""
    rows = row(0, LONG), row(10_000, LONG)
    for store_s, tokens in ((0.1, 4 * BLOCK - 1), (0.6, 0)):
        trace = trace_of(tmp_path, *rows)
        engine = Engine(block_size=BLOCK, cache_blocks=100, prefill_per_s=1024.0, store_s=store_s)
        replay(trace, workers=2, engine=engine)
        second = trace.requests[1]
        assert (second.hit, second.hit_tokens) == (0, tokens)


def test_sessions_go_on_when_they_are_answered(tmp_path: Path) -> None:
    sessions = [row(i, [i], session_id=str(i)) for i in range(10, 14)]
    following = [row(0, [i, 9], session_id=str(i), delay=500) for i in range(10, 14)]
    trace = trace_of(tmp_path, *sessions, *following)
    assert trace.is_closed
    assert len(trace.heads) == 4
    replay(trace)
    for first, second in zip(trace.requests[:4], trace.requests[4:], strict=True):
        assert second.arrival == pytest.approx(first.done + 0.5)
    with pytest.raises(CannotReplay, match="lower --sessions"):
        replay(trace, workers=4)


def views(*workers: View, tokens: int) -> Views:
    views = Views(workers)
    views.input_tokens, views.block_size = tokens, BLOCK
    return views


def test_policies_choose_by_their_formulas() -> None:
    """Dynamo's weighs what is to be computed against the blocks in use; the weight turns it."""
    here = View(0, 100, cached_blocks=4, active_requests=9, active_blocks=20, potential_blocks=21)
    there = View(1, 100, active_requests=1, potential_blocks=5)
    prompt = (1, 2, 3, 4, 5)

    def choice(name: str) -> int:
        policy = policy_of(name, n_workers=2, block_size=BLOCK, seed=1)
        return int(policy(prompt, views(here, there, tokens=5 * BLOCK)))

    assert choice("least_loaded") == 1
    assert choice("dynamo_cost") == 1
    assert choice("dynamo_cost?overlap_weight=5") == 0
    assert choice("dynamo_cost?formula=lmetric") == 0
    assert [choice("round_robin"), choice("oracle")] == [0, 1]


def test_sglangs_router_remembers_where_it_has_sent_what() -> None:
    policy = policy_of("sglang?balance_abs=4", n_workers=2, block_size=BLOCK, seed=1)
    idle = views(View(0, 100), View(1, 100), tokens=3 * BLOCK)
    first = policy((1, 2, 3), idle)
    assert policy((1, 2, 4), idle) == first
    other = policy((7, 8), idle)
    assert other != first, "its tree is smaller"
    busy = views(View(0, 100), View(1, 100), tokens=3 * BLOCK)
    busy[first].active_requests = 9
    assert policy((1, 2, 3), busy) == 1 - first


@pytest.mark.parametrize("policy", [*OWN, "app.routing.simulated:Policy"])
def test_no_policy_hits_more_than_the_bounds(tmp_path: Path, policy: str) -> None:
    rows = [row(100 * i, [i % 7, i % 3, i], answer=20) for i in range(60)]
    trace = trace_of(tmp_path, *rows)
    result = replay(trace, policy, workers=3)
    assert result["hit"] <= bounds(trace, ENGINE, 3, 0.0)["hit_infinite"] + 1e-9
    assert result["measured"] == 60
    assert replay(trace_of(tmp_path, *rows), policy, workers=3) | {"us_per_route": 0} == result | {"us_per_route": 0}


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(LookupError, match="no policy 'best'"):
        policy_of("best", 1, BLOCK, 0)
