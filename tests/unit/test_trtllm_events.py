"""TensorRT-LLM's KV events as vLLM's: what a router must not be told of is left out."""

from typing import Any

import msgspec

from app.engines.kv_publisher import AllBlocksCleared, BlockRemoved, BlockStored
from app.engines.trtllm.events import RankEvents
from app.kv.blocks import chain, root
from app.kv.events import KvEvent as WireEvent
from app.kv.ledger import Ledger
from app.messages import decoder
from tests.trtllm.contract import wire_names


def block(hash_: int | str, *tokens: int, **more: Any) -> dict[str, Any]:
    return {"block_hash": hash_, "tokens": [{"token_id": token} for token in tokens], "cache_level": 0, **more}


def event(number: int, kind: str, window: int = 64, **data: Any) -> dict[str, Any]:
    keys = {"event_id", "window_size", "data", "type", *data}.union(*data.get("blocks", []))
    assert keys <= wire_names()
    return {"event_id": number, "window_size": window, "data": {"type": kind, **data}}


def stored(number: int, *blocks: dict[str, Any], parent: int | None = None, window: int = 64, **more: Any) -> Any:
    return event(number, "stored", window, parent_hash=parent, blocks=list(blocks), **more)


def test_a_chain_of_blocks_is_one_event() -> None:
    [found] = RankEvents(2).read(stored(5, block(1, 10, 11), block(2, 12, 13), parent=9))
    assert found == BlockStored([1, 2], 9, [10, 11, 12, 13], 2)


def test_what_else_a_hash_covers_comes_with_the_first_block() -> None:
    [found] = RankEvents(2).read(stored(0, block(1, 1, 2), block(2, 3, 4), lora_name="l", cache_salt="s"))
    assert isinstance(found, BlockStored)
    assert (found.lora_name, found.extra_keys) == ("l", [["l", "s"], None])


def test_a_partial_block_and_its_removal_are_left_out() -> None:
    rank = RankEvents(2)
    [found] = rank.read(stored(0, block(1, 1, 2), block(2, 3)))
    assert found == BlockStored([1], None, [1, 2], 2)
    assert rank.read(stored(1, block(3, 4), parent=1)) == []
    assert rank.read(event(2, "removed", block_hashes=[2, 1])) == [BlockRemoved([1])]
    assert rank.read(event(3, "removed", block_hashes=[3])) == []
    assert rank.read(event(4, "removed", block_hashes=[3])) == [BlockRemoved([3])]  # another one of that hash, full


def test_only_the_largest_window_counts() -> None:
    rank = RankEvents(2)
    for number, window in enumerate((32, 64, 16)):
        assert rank.read(event(number, "created", window, num_blocks_per_cache_level=[9])) == []
    assert rank.read(stored(3, block(1, 1, 2), window=32)) == []
    assert rank.read(event(4, "removed", 32, block_hashes=[1])) == []
    assert rank.read(stored(5, block(1, 1, 2))) != []


def test_after_a_gap_nothing_is_known() -> None:
    rank = RankEvents(2)
    rank.read(stored(0, block(1, 1, 2), block(2, 3)))
    assert rank.read(event(2, "removed", block_hashes=[2])) == [AllBlocksCleared(), BlockRemoved([2])]


def test_blocks_of_images_and_what_follows_are_left_out() -> None:
    rank = RankEvents(2)
    blocks = [block(1, 1, 2), block(2, 3, 4, mm_keys=[{"type": "mm_key"}]), block(3, 5, 6)]
    [found] = rank.read(stored(0, *blocks))
    assert found == BlockStored([1], None, [1, 2], 2)
    assert rank.read(moved(1, 3, 0, 1)) == []
    assert rank.read(event(2, "removed", block_hashes=[3, 2])) == []


def moved(number: int, hash_: int | str, old: int, new: int) -> dict[str, Any]:
    return event(number, "updated", block_hash=hash_, cache_level={"new_value": new, "old_value": old})


def test_hashes_of_digits_are_bytes_and_a_new_priority_is_no_news() -> None:
    rank = RankEvents(2)
    assert rank.read(stored(0, block("00ff", 1, 2))) == [BlockStored([b"\x00\xff"], None, [1, 2], 2)]
    priority = {"new_value": 1, "old_value": 35}
    assert rank.read(event(1, "updated", block_hash="00ff", cache_level=None, priority=priority)) == []


def after(*events: dict[str, Any]) -> Ledger:
    """What the index has of it."""
    rank, ledger = RankEvents(2), Ledger(2)
    decode, encode = decoder(list[WireEvent]), msgspec.msgpack.Encoder().encode
    for told in events:
        ledger.apply(decode(encode(rank.read(told))))
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
