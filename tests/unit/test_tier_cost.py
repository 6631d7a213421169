"""The part of a prompt that each place can load: exactly what a look at each of its blocks finds; and its cost."""

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.messages.lease import Speeds
from app.routing.candidates import Ask, Matches, Option, PlaceLimits, Tiered
from app.routing.cost import Fleet, kv_cost, missing_blocks, new_blocks, uncached_tokens
from app.routing.tier_cost import Numbers, chains, load_s, worthwhile
from tests.leases import candidate

BLOCK, BYTES = 32, 2**22
SPEEDS = Speeds(prefill_tokens_per_s=10_000.0, host_bytes_per_s=4e9, store_bytes_per_s=1e9)
PLACE = candidate(limits=PlaceLimits(8), block_size=BLOCK, kv_events=True, tier_block_bytes=BYTES, speeds=SPEEDS)
PLACES = [Numbers(1, 11, 100), Numbers(2, 12, 100), Numbers(3, 0, 0), Numbers(0, 14, 101)]


def naive(caches: list[set[int]], tiers: list[set[int]], place: Numbers) -> tuple[int, int, int]:
    """Block after block."""
    cached_blocks = host = store = 0
    for number in range(len(caches)):
        if cached_blocks == number and place.cache in caches[number]:
            cached_blocks += 1
        elif place.host in tiers[number]:
            host += 1
        elif place.store in tiers[number]:
            store += 1
        else:
            break
    return cached_blocks, host, store


Where = tuple[set[int], set[int]]  # caches and tiers that hold a block
blocks = st.tuples(st.sets(st.sampled_from([1, 2, 3])), st.sets(st.sampled_from([11, 12, 14, 100, 101])))


@given(st.lists(st.tuples(blocks, st.integers(1, 3)), max_size=8))
def test_the_chain_is_the_longest_one_in_which_each_block_lies_somewhere(found: list[tuple[Where, int]]) -> None:
    each = [one for one, times in found for _ in range(times)]
    chain_by_place = chains([(len(list(same)), *one) for one, same in groupby(each)], PLACES)
    for i, place in enumerate(PLACES):
        cached_blocks, behind = chain_by_place.get(i, (0, Tiered()))
        assert (cached_blocks, behind.host, behind.store) == naive([c for c, _ in each], [t for _, t in each], place)


def test_a_block_behind_a_gap_in_the_cache_is_not_counted_as_cached() -> None:
    """The engine takes only leading blocks from its own cache."""
    runs = [(2, {1}, {11}), (1, set[int](), {11}), (3, {1}, {11})]
    assert chains(runs, PLACES[:1]) == {0: (2, Tiered(host=4))}
    assert chains([(2, {1}, set()), (1, set(), {11}), (3, {1}, set())], PLACES[:1]) == {0: (2, Tiered(host=1))}


def test_what_is_loaded_is_not_computed_and_has_a_price_of_measured_seconds() -> None:
    ask = Ask(prompt_tokens=10 * BLOCK + 1, max_tokens=64)
    computing_option = Option(PLACE)
    loading_option = Option(PLACE, cached=2, coming=2, tiered=Tiered(host=3, store=4))
    assert uncached_tokens(ask, loading_option) == BLOCK + 1
    assert load_s(loading_option) == BYTES * (7 / 4e9 + 4 / 1e9)
    fleet = Fleet.of([PLACE])
    costs = [kv_cost(ask, option, fleet, 1.0) for option in (computing_option, loading_option)]
    assert costs[1].wait - costs[0].wait == load_s(loading_option)
    assert costs[1].total < costs[0].total


def test_what_is_loaded_needs_room_and_is_pulled_where_prefill_and_decode_are_apart() -> None:
    ask = Ask(prompt_tokens=10 * BLOCK + 1, max_tokens=BLOCK)
    loading_option = Option(PLACE, cached=2, coming=2, tiered=Tiered(host=8))
    assert uncached_tokens(ask, loading_option) == 1
    assert missing_blocks(ask, loading_option) == 9
    assert new_blocks(ask, loading_option) == new_blocks(ask, Option(PLACE, cached=2, coming=2))


def test_a_request_before_it_that_brings_the_blocks_makes_loading_free() -> None:
    waiting = Option(PLACE, cached=0, coming=5, tiered=Tiered(host=5))
    assert load_s(waiting) == 0.0
    assert load_s(replace(waiting, coming=4)) > 0


def test_before_anything_was_loaded_a_speed_is_assumed() -> None:
    new = replace(PLACE, lease=replace(PLACE.lease, speeds=Speeds()))
    assert 0 < load_s(Option(new, tiered=Tiered(host=1))) < load_s(Option(new, tiered=Tiered(store=1)))


@pytest.mark.parametrize(
    ("host", "store", "use"),
    [(4e9, 1e9, "all"), (4e9, 1e8, "all"), (4e9, 1e6, "host"), (1e6, 1e9, "none"), (0.0, 0.0, "all")],
)
def test_a_tier_that_is_slower_than_computing_is_not_used(host: float, store: float, use: str) -> None:
    """A block of 32 tokens takes 0.32 s here, and has 4 MiB. What was not measured yet is tried."""
    speeds = replace(SPEEDS, host_bytes_per_s=host, store_bytes_per_s=store, prefill_tokens_per_s=100.0)
    assert worthwhile(speeds, BLOCK, BYTES) == use
    lease = replace(PLACE.lease, speeds=speeds, caches=[1], hosts=[11], store=100)
    assert Numbers.of(lease, 0) == Numbers(1, 0 if use == "none" else 11, 100 if use == "all" else 0)


def test_a_places_match_has_its_tiers() -> None:
    matches = Matches([(2, frozenset([0]))], tiered={0: Tiered(host=3), 1: Tiered(store=1)})
    assert matches.option(0, PLACE) == Option(PLACE, 2, 2, tiered=Tiered(host=3))
    assert matches.option(1, PLACE).tiered == Tiered(store=1)
    assert matches.option(2, PLACE) == Option(PLACE)
