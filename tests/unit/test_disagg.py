"""Whether another worker computes the prompt: the promises of that decision."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import NoWorker
from app.ids import WorkerId
from app.messages.lease import Speeds
from app.pools.schema import Routing
from app.routing.candidates import Ask, Option, PlaceLimits
from app.routing.disagg import SplitPlacement, place_split, still_fits
from app.routing.policy import loaded, place
from tests.leases import candidate
from tests.present import present

ASK = Ask(prompt_tokens=4000, max_tokens=100)
RULES = (Routing(), Routing())
THRESHOLDS = PlaceLimits(8, remote_tokens=256, remote_wait_s=0.5)


def option(role: str, *, cached: int = 0, limits: PlaceLimits = THRESHOLDS, name: str = "", **changes: Any) -> Option:
    usual = {"pool": role, "role": role, "total_blocks": 4000, "block_bytes": 2_000_000, "speeds": Speeds(10_000.0)}
    return Option(candidate(name or role[0], limits, **usual | changes), cached, cached)


def decide(prefills: list[Option], decodes: list[Option], ask: Ask = ASK) -> SplitPlacement | None:
    here = place(ask, decodes, RULES[1], Random(0))
    return place_split(ask, here, prefills, decodes, RULES, Random(0))


def test_a_long_prompt_is_computed_apart_and_pulled_where_it_is_decoded() -> None:
    apart = present(decide([option("prefill")], [option("decode")]))
    to = apart.decode.placement
    first = apart.prefill.placement
    assert (first.worker, first.tokens, first.pulls) == ("p", 4000, 0)
    assert (to.worker, to.tokens, to.pulls) == ("d", 0, 250)
    assert (first.blocks, to.blocks) == (250, 257), "no answer is written there"


@pytest.mark.parametrize(
    ("prefill", "decode", "why"),
    [
        ({}, {"cached": 240}, "160 tokens are left: fewer than 256"),
        ({"tokens": 5001}, {}, "its queue is longer than half a second"),
        ({"draining": True}, {}, "it goes"),
        ({"requests": 16}, {}, "it is full"),
        ({"block_bytes": 0}, {}, "it can't hand over"),
        ({}, {"block_bytes": 0}, "who decodes can't pull"),
    ],
)
def test_otherwise_the_decode_worker_computes_the_prompt(
    prefill: dict[str, Any], decode: dict[str, Any], why: str
) -> None:
    assert decide([option("prefill", **prefill)], [option("decode", **decode)]) is None, why


def test_a_worker_that_only_prefills_answers_nothing() -> None:
    with pytest.raises(NoWorker):
        place(ASK, [option("prefill")], RULES[0], Random(0))


def test_who_decodes_is_the_one_with_less_to_pull_and_less_on_its_way_there() -> None:
    """Bytes that are still to come count."""
    slow = {"speeds": Speeds(10_000.0, pulled_bytes_per_s=1e9)}
    a, b = option("decode", name="a", pulls=500, **slow), option("decode", name="b", pulls=100, **slow)
    apart = present(decide([option("prefill")], [a, b]))
    assert apart.decode.placement.worker == "b"
    a = option("decode", name="a", pulls=200, cached=230, **slow)
    apart = present(decide([option("prefill")], [a, b]))
    assert apart.decode.placement.worker == "a"


def test_whose_transfers_were_slow_lately_decodes_as_much_as_its_equals() -> None:
    """The first one has to connect: by its own speed it would get none that comes alone, and stay as slow."""
    speeds = {"a": Speeds(10_000.0, pulled_bytes_per_s=1e7), "b": Speeds(10_000.0, pulled_bytes_per_s=4e8)}
    decodes = [option("decode", name=name, speeds=own) for name, own in speeds.items()]
    workers = [place(ASK, decodes, RULES[1], Random(seed), part="decode").placement.worker for seed in range(40)]
    assert 10 < workers.count(WorkerId("a")) < 30


@given(st.integers(0, 20_000), st.integers(0, 7), st.integers(1, 8000))
def test_without_a_threshold_the_choice_is_what_costs_all_together_less(
    queued: int, decoding: int, prompt: int
) -> None:
    """The cost in seconds is its own wait and that of each request whose next token waits for a prefill."""
    free = PlaceLimits(8, remote_tokens=0)
    prefill = option("prefill", limits=free, tokens=queued)
    decode = option("decode", limits=free, requests=decoding)
    apart = decide([prefill], [decode], Ask(prompt, 100))
    seconds = prompt / 10_000
    there = queued / 10_000 + seconds + 0.005 + -(-prompt // 16) * 2e6 / 3e9 + 0.02 * decoding / 8
    here = seconds + 0.02 * decoding / 8 + decoding * seconds
    if abs(there - here) > 1e-6:
        assert (apart is not None) == (there < here)


def test_who_waits_for_a_prefill_is_not_delayed_by_another() -> None:
    """Four or two of the six requests here have their first token."""
    free, quick = PlaceLimits(8, remote_tokens=0), Speeds(10_000.0, pulled_bytes_per_s=1e15)
    prefill = option("prefill", limits=free, requests=8, tokens=12_000)
    for waiting, apart in ((2, True), (4, False)):
        here = option("decode", limits=free, requests=6, waiting=waiting, pulls=500, max_running=1000, speeds=quick)
        assert (decide([prefill], [here]) is not None) is apart, waiting


def test_a_pool_that_has_computed_nothing_is_as_fast_as_the_others() -> None:
    """A prompt would otherwise rather wait for a prefill worker than be the first that is computed here."""
    free = PlaceLimits(8, remote_tokens=0)
    fast, unknown = Speeds(40_000.0), Speeds(0.0)
    prefill = option("prefill", limits=free, tokens=10_000, speeds=fast)
    assert decide([prefill], [option("decode", limits=free, speeds=unknown)]) is None
    assert decide([option("prefill", limits=free, speeds=unknown)], [option("decode", limits=free, requests=1)])


def test_a_placement_apart_is_counted_before_the_next() -> None:
    fleet = [option("prefill").candidate, option("decode").candidate]
    apart = present(decide([Option(fleet[0])], [Option(fleet[1])]))
    for to in (apart.prefill.placement, apart.decode.placement):
        fleet = [loaded(c, to) if c.lease.worker.id == to.worker else c for c in fleet]
    assert [(c.requests, c.tokens, c.waiting, c.pulls) for c in fleet] == [(1, 4000, 1, 0), (1, 0, 1, 250)]


@pytest.mark.parametrize(
    ("changes", "fits"),
    [({}, True), ({"draining": True}, False), ({"used_blocks": 3800}, False), ({"used_blocks": 3750}, True)],
)
def test_a_decode_worker_is_kept_while_it_has_room(changes: dict[str, Any], fits: bool) -> None:
    assert still_fits(option("decode", **changes).candidate.lease, 250) is fits


def test_a_decode_worker_that_is_gone_is_not_kept() -> None:
    assert not still_fits(None, 1)
