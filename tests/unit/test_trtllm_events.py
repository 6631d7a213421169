"""TensorRT-LLM's KV events as vLLM's: what a router must not be told of is left out."""

from typing import Any

import msgspec
import pytest

from app.engines.kv_publisher import AllBlocksCleared, BlockRemoved, BlockStored
from app.engines.trtllm.events import RankEvents, groups_of
from app.engines.trtllm.groups import has_states, has_windows
from app.kv.blocks import chain, root
from app.kv.events import KvEvent as WireEvent
from app.kv.hybrid_ledger import HybridLedger
from app.kv.ledger import Ledger
from app.messages.lease import CacheGroup
from app.messages.wire import decoder
from tests.trtllm.contract import wire_names


def block(hash_: int | str, *tokens: int | str, **more: Any) -> dict[str, Any]:
    return {"block_hash": hash_, "tokens": [{"token_id": token} for token in tokens], "cache_level": 0, **more}


def event(number: int, kind: str, window: int = 64, **data: Any) -> dict[str, Any]:
    keys = {"event_id", "window_size", "data", "type", *data}.union(*data.get("blocks", []))
    assert keys <= wire_names()
    return {"event_id": number, "window_size": window, "data": {"type": kind, **data}}


def v2(group: int, told: dict[str, Any], hash_algo: str = "v2_sha256") -> dict[str, Any]:
    assert {"layer_group_id", "hash_algo"} <= wire_names()
    return told | {"layer_group_id": group, "hash_algo": hash_algo}


def stored(number: int, *blocks: dict[str, Any], parent: int | None = None, window: int = 64, **more: Any) -> Any:
    return event(number, "stored", window, parent_hash=parent, blocks=list(blocks), **more)


def test_a_chain_of_blocks_is_one_event() -> None:
    [stored_event] = RankEvents(2).read(stored(5, block(1, 10, 11), block(2, 12, 13), parent=9))
    assert stored_event == BlockStored([1, 2], 9, [10, 11, 12, 13], 2)


def test_what_else_a_hash_covers_comes_with_the_first_block() -> None:
    [stored_event] = RankEvents(2).read(stored(0, block(1, 1, 2), block(2, 3, 4), lora_name="l", cache_salt="s"))
    assert isinstance(stored_event, BlockStored)
    assert (stored_event.lora_name, stored_event.extra_keys) == ("l", [["l", "s"], None])


def test_a_partial_block_and_its_removal_are_left_out() -> None:
    rank = RankEvents(2)
    [stored_event] = rank.read(stored(0, block(1, 1, 2), block(2, 3)))
    assert stored_event == BlockStored([1], None, [1, 2], 2)
    assert rank.read(stored(1, block(3, 4), parent=1)) == []
    assert rank.read(event(2, "removed", block_hashes=[2, 1])) == [BlockRemoved([1])]
    assert rank.read(event(3, "removed", block_hashes=[3])) == []
    assert rank.read(event(4, "removed", block_hashes=[3])) == [BlockRemoved([3])]  # another one of that hash, full


def test_after_a_gap_nothing_is_known() -> None:
    rank = RankEvents(2)
    rank.read(stored(0, block(1, 1, 2), block(2, 3)))
    assert rank.read(event(2, "removed", block_hashes=[2])) == [AllBlocksCleared(), BlockRemoved([2])]


def test_blocks_of_pictures_and_what_follows_are_left_out_and_counted() -> None:
    """Pictures have keys in V1, and tokens of digits in V2. Their count shows how little the index sees."""
    by_keys = [block(1, 1, 2), block(2, 3, 4, mm_keys=[{"type": "mm_key"}]), block(3, 5, 6)]
    by_digits = [block(1, 1, 2), block(2, "00ff", 4), block(3, 5, 6)]
    for blocks in (by_keys, by_digits):
        rank = RankEvents(2)
        [stored_event, *other_events] = rank.read(stored(0, *blocks))
        assert stored_event == BlockStored([1], None, [1, 2], 2)
        assert other_events == [BlockStored([2, 3], None, [], 2), BlockRemoved([2, 3])]
        assert rank.read(moved(1, 3, 0, 1)) == []
        assert rank.read(event(2, "removed", block_hashes=[3, 2])) == []
        there = after(stored(0, *blocks))
        assert (len(there), there.unknown) == (1, 2)


def moved(number: int, hash_: int | str, old: int, new: int) -> dict[str, Any]:
    return event(number, "updated", block_hash=hash_, cache_level={"new_value": new, "old_value": old})


def test_hashes_of_digits_are_bytes_and_a_new_priority_is_no_news() -> None:
    rank = RankEvents(2)
    assert rank.read(stored(0, block("00ff", 1, 2))) == [BlockStored([b"\x00\xff"], None, [1, 2], 2)]
    priority = {"new_value": 1, "old_value": 35}
    assert rank.read(event(1, "updated", block_hash="00ff", cache_level=None, priority=priority)) == []


def after(*events: dict[str, Any]) -> Ledger:
    """The index's ledger after these events."""
    rank, ledger = RankEvents(2), Ledger(2)
    decode, encode = decoder(list[WireEvent]), msgspec.msgpack.Encoder().encode
    for engine_event in events:
        ledger.apply(decode(encode(rank.read(engine_event))))
    return ledger


def test_a_block_is_in_the_hosts_part_while_it_is_there_and_in_the_devices_else() -> None:
    first, second = chain(root(["s"]), [1, 2, 3, 4], 2)
    begin = stored(0, block(1, 1, 2), block(2, 3, 4), cache_salt="s")
    there = after(begin, moved(1, 2, 0, 1))
    assert (there.blocks(), there.host.blocks()) == ([first], [second])
    back = after(begin, moved(1, 2, 0, 1), moved(2, 1, 0, 1), moved(3, 1, 1, 0), moved(4, 2, 1, 0))
    assert (back.blocks(), back.host.blocks()) == ([first, second], [])
    assert not back.unknown
    on_disk = after(begin, moved(1, 2, 0, 1), moved(2, 2, 1, 2))
    assert (on_disk.blocks(), on_disk.host.blocks()) == ([first], [second])


def test_what_is_dropped_is_nowhere_wherever_it_was() -> None:
    begin = stored(0, block(1, 1, 2), block(2, 3, 4))
    there = after(begin, moved(1, 2, 0, 1), event(2, "removed", block_hashes=[2, 1]))
    assert (there.blocks(), there.host.blocks()) == ([], [])


def test_after_a_gap_host_memory_is_not_known_either() -> None:
    there = after(stored(0, block(1, 1, 2)), moved(1, 1, 0, 1), stored(3, block(2, 3, 4)))
    assert (there.blocks(), there.host.blocks()) == (chain(root(), [3, 4], 2), [])


def test_a_block_may_be_stored_in_host_memory_and_computed_again() -> None:
    first, second = chain(root(), [1, 2, 3, 4], 2)
    begin = stored(0, block(1, 1, 2), block(2, 3, 4, cache_level=1))
    there = after(begin)
    assert (there.blocks(), there.host.blocks()) == ([first], [second])
    again = after(begin, stored(1, block(2, 3, 4), parent=1))
    assert (again.blocks(), again.host.blocks()) == ([first, second], [])


WINDOW, ALL = 4, 1024  # tokens


def created(windows: list[int], *, numbered: bool = True) -> list[dict[str, Any]]:
    created_events = [event(at, "created", window, num_blocks_per_cache_level=[9]) for at, window in enumerate(windows)]
    return [v2(at, one) for at, one in enumerate(created_events)] if numbered else created_events


@pytest.mark.parametrize(
    ("windows", "numbered", "groups"),
    [
        ([], True, None),
        ([ALL], True, ()),
        ([ALL], False, ()),
        ([WINDOW, ALL], True, (CacheGroup(0, "window", 2, WINDOW, 2), CacheGroup(1, "all", 2))),
        ([ALL, WINDOW], False, (CacheGroup(WINDOW, "window", 2, WINDOW, 2), CacheGroup(ALL, "all", 2))),
        ([ALL, ALL], True, (CacheGroup(0, "all", 2), CacheGroup(1, "all", 2))),  # of different heads
        ([WINDOW], True, (CacheGroup(0, "window", 2, WINDOW, 2),)),
        (
            [WINDOW, 512],
            True,
            (CacheGroup(0, "window", 2, WINDOW, 2), CacheGroup(1, "all", 2)),
        ),  # it has room for 512 only
    ],
)
def test_an_engine_tells_its_groups_of_layers_when_it_begins(
    windows: list[int], numbered: bool, groups: tuple[CacheGroup, ...] | None
) -> None:
    assert groups_of(created(windows, numbered=numbered), 2, ALL) == groups


def resumable(*told: dict[str, Any]) -> HybridLedger:
    """The index's ledger after these events, for an engine with windows in its group 0."""
    created_events = created([WINDOW, ALL])
    groups = groups_of(created_events, 2, ALL)
    assert groups
    rank, ledger = RankEvents(2, groups), HybridLedger(groups)
    decode, encode = decoder(list[WireEvent]), msgspec.msgpack.Encoder().encode
    for one in [*created_events, *told]:
        ledger.apply(decode(encode(rank.read(one))))
    ledger.take()
    return ledger


TOKENS = [1, 2, 3, 4, 5, 6, 7, 8]
HASHES = ["0a", "0b", "0c", "0d"]


def both(**more: Any) -> list[dict[str, Any]]:
    """A prompt of four blocks, as V2 tells of it: to each group, with the same hashes."""
    blocks = [block(one, *TOKENS[at * 2 : at * 2 + 2], **more) for at, one in enumerate(HASHES)]
    return [v2(0, stored(2, *blocks, window=WINDOW)), v2(1, stored(3, *blocks, window=ALL))]


def test_a_prompt_resumes_where_each_group_of_v2_has_what_it_needs() -> None:
    """A window of 4 needs the 3 tokens before: two blocks, or all from the beginning."""
    ours = chain(root(), TOKENS, 2)
    assert sorted(resumable(*both()).blocks()) == sorted(ours)
    window_loss = resumable(*both(), v2(0, event(4, "removed", WINDOW, block_hashes=["0a"])))
    assert sorted(window_loss.blocks()) == sorted(ours[2:])  # the others need what has left
    back = resumable(
        *both(),
        v2(0, event(4, "removed", WINDOW, block_hashes=["0a"])),
        v2(0, stored(5, block("0a", 1, 2), window=WINDOW)),
    )
    assert sorted(back.blocks()) == sorted(ours)
    full_loss = resumable(*both(), v2(1, event(4, "removed", ALL, block_hashes=["0d"])))
    assert sorted(full_loss.blocks()) == sorted(ours[:3])
    assert not resumable(*both(), v2(0, event(5, "removed", WINDOW, block_hashes=["0a"]))).blocks()  # after a gap


def test_blocks_of_several_groups_are_held_in_whatever_tier() -> None:
    """The engine brings them back itself, and counts them as cached."""
    level = {"new_value": 1, "old_value": 0}
    there = resumable(*both(), v2(1, event(4, "updated", ALL, block_hash="0b", cache_level=level)))
    assert (len(there), there.unknown) == (4, 0)


def test_a_salt_may_stand_in_the_blocks() -> None:
    assert sorted(resumable(*both(cache_salt="s")).blocks()) == sorted(chain(root(["s"]), TOKENS, 2))


def test_what_nobody_knows_is_counted_and_never_placed() -> None:
    """Blocks hashed in an unknown way; a group that came later; an event of a new kind, which may have removed some."""
    strange = after(v2(0, stored(0, block("0a", 1, 2)), "sha3"))
    assert (len(strange), strange.unknown) == (0, 1)
    late = after(v2(0, stored(0, block("0a", 1, 2))), v2(1, stored(1, block("0a", 1, 2))))
    assert (len(late), late.unknown) == (1, 1)
    assert resumable(*both(), v2(7, stored(4, block("0a", 1, 2)))).unknown == 1
    new = after(v2(0, stored(0, block("0a", 1, 2))), {"event_id": 1, "window_size": 64, "data": {"type": "frozen"}})
    assert (len(new), new.unknown) == (0, 1)


@pytest.mark.parametrize(
    ("config", "states", "windows"),
    [
        ({"model_type": "llama"}, False, False),
        ({"sliding_window": None}, False, False),
        ({"sliding_window": 512}, False, True),
        ({"sliding_window": 512, "use_sliding_window": False}, False, False),
        ({"sliding_window": 4096}, False, False),  # no longer than a prompt may be
        ({"sliding_window": 512, "layer_types": ["full_attention"] * 2}, False, False),
        ({"layer_types": ["sliding_attention", "full_attention"]}, False, True),
        ({"layer_types": ["linear_attention", "full_attention"]}, True, False),
        ({"hybrid_override_pattern": "M-M*"}, True, False),
        ({"mamba_d_state": 64}, True, False),
    ],
)
def test_a_configuration_says_what_its_layers_see(config: dict[str, Any], states: bool, windows: bool) -> None:
    assert (has_states(config), has_windows(config, 4096)) == (states, windows)
