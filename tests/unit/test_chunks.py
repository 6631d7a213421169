"""Chunks of several blocks that a connector keeps, by hashes of its own: which of our blocks they are."""

from app.kv.blocks import chain, root
from app.kv.changes import Changes
from app.kv.events import AllBlocksCleared, BlockRemoved, BlockStored
from app.kv.ledger import Ledger
from tests.ledgers import SIZE, told

TOKENS = [*range(4 * SIZE)]
OURS = chain(root(), TOKENS, SIZE)


def on_device(first: int = 0, last: int = 4, salt: str | None = None) -> BlockStored:
    keys = [[salt] if salt and not number else None for number in range(first, last)]
    parent = first - 1 if first else None
    return BlockStored([*range(first, last)], parent, TOKENS[first * SIZE : last * SIZE], SIZE, extra_keys=keys)


def chunk(number: int, parent: bytes | None = None) -> BlockStored:
    """Two blocks."""
    return BlockStored([b"%d" % number], parent, TOKENS[2 * number * SIZE :][: 2 * SIZE], 2 * SIZE, "CPU")


CHUNKS = chunk(0), chunk(1, b"0")


def test_a_chunks_blocks_are_those_of_its_tokens() -> None:
    ledger = told(on_device(), *CHUNKS)
    assert ledger.host.take() == Changes(False, OURS, [])
    ledger.apply([BlockRemoved([*range(4)], "GPU"), BlockRemoved([b"1"], "CPU")])
    assert (len(ledger), ledger.host.blocks()) == (0, OURS[:2])


def test_a_chunk_is_named_when_its_blocks_come_to_the_device_later() -> None:
    ledger = told(*CHUNKS)
    assert ledger.host.take() is None
    ledger.apply([on_device(0, 3)])
    assert ledger.host.take() == Changes(False, OURS[:3], [])


def test_a_chunk_shows_nothing_of_a_prompt_that_only_a_salt_has_computed() -> None:
    """The events of chunks have no salt: by tokens alone, others would see who has asked what."""
    ledger = told(on_device(salt="mine"), *CHUNKS)
    assert ledger.host.take() is None
    ledger.apply([BlockRemoved([*range(4)]), on_device(0, 1)])
    assert ledger.host.take() == Changes(False, OURS[:1], [])


def test_a_chunk_behind_an_unknown_one_is_left_out() -> None:
    ledger = told(on_device(), chunk(1, b"0"), BlockStored([b"x"], None, TOKENS[:7], 7, "CPU"))
    assert ledger.host.take() is None


def test_a_chunk_that_is_told_twice_goes_once() -> None:
    ledger = told(on_device(), *CHUNKS, *CHUNKS, BlockRemoved([b"1"], "CPU"))
    assert ledger.host.blocks() == OURS[:2]
    ledger.apply([BlockRemoved([b"0", b"1"], "CPU")])
    assert not ledger.host.blocks()


def test_two_chunks_of_the_same_tokens_go_one_after_the_other() -> None:
    """LMCache's hashes have the salt and the adapter in them, which its events don't tell."""
    ledger = told(on_device(), chunk(0), BlockStored([b"other"], None, TOKENS[: 2 * SIZE], 2 * SIZE, "CPU"))
    ledger.apply([BlockRemoved([b"other"], "CPU"), BlockRemoved([b"0"], "CPU")])
    assert not ledger.host.blocks()


def test_after_a_clear_nothing_of_a_chunk_is_known() -> None:
    ledger = told(on_device(), *CHUNKS, AllBlocksCleared(), on_device())
    assert not ledger.host.blocks()


def test_the_oldest_chunks_are_forgotten_beyond_a_bound() -> None:
    ledger = Ledger(SIZE, most_in_host=3)
    ledger.apply([on_device(), *CHUNKS])
    assert ledger.host.blocks() == OURS[2:]
    ledger.apply([BlockRemoved([b"0", b"1"], "CPU")])
    assert not ledger.host.blocks()
