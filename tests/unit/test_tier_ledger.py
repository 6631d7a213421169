"""Blocks in tiers, by an engine's events, in our hashes: only those that the device's events have named."""

import itertools

from app.kv.blocks import chain, root
from app.kv.changes import Changes
from app.kv.events import AllBlocksCleared, BlockRemoved, BlockStored
from tests.ledgers import SIZE, told

SALTED = chain(root(["salt"]), [1] * 2 * SIZE, SIZE)


def on_device(*blocks: int, parent: int | None = None) -> BlockStored:
    """An event of a prompt with a salt, which events of tiers don't tell."""
    keys = [["salt"] if parent is None and not number else None for number in range(len(blocks))]
    return BlockStored([*blocks], parent, [1] * SIZE * len(blocks), SIZE, "GPU", extra_keys=keys)


def in_tier(medium: str, *blocks: int) -> BlockStored:
    return BlockStored([*blocks], None, [1] * SIZE * len(blocks), SIZE, medium)


def test_a_block_in_a_tier_has_the_hash_that_it_has_on_the_device() -> None:
    ledger = told(on_device(7, 8), in_tier("CPU", 7, 8), in_tier("STORAGE", 7), has_store=True)
    assert ledger.host.take() == Changes(False, SALTED, [])
    assert ledger.store.take() == Changes(False, SALTED[:1], [])
    assert ledger.blocks() == SALTED


def test_it_keeps_it_when_the_device_has_evicted_the_block() -> None:
    ledger = told(
        on_device(7, 8), in_tier("CPU", 7, 8), BlockRemoved([7, 8], "GPU"), in_tier("STORAGE", 8), has_store=True
    )
    assert (len(ledger), ledger.host.blocks(), ledger.store.blocks()) == (0, SALTED, SALTED[1:])
    ledger.apply([BlockRemoved([8], "CPU")])
    assert (ledger.host.blocks(), ledger.store.blocks()) == (SALTED[:1], SALTED[1:])


def test_what_a_new_process_loads_is_named_once_it_is_on_the_device() -> None:
    """Such a block comes through the host's memory first."""
    ledger = told(in_tier("CPU", 7, 8), has_store=True)
    assert (len(ledger.host), ledger.host.take()) == (0, None)
    ledger.apply([on_device(7, 8)])
    assert ledger.host.take() == Changes(False, SALTED, [])


def test_a_clear_forgets_the_hosts_memory_and_not_the_store() -> None:
    ledger = told(on_device(7), in_tier("CPU", 7), in_tier("STORAGE", 7), AllBlocksCleared(), has_store=True)
    assert ledger.host.take() == Changes(True, [], [])
    assert ledger.store.take() == Changes(False, SALTED[:1], [])


def test_a_block_of_another_group_of_layers_counts_nowhere() -> None:
    ledger = told(on_device(7), BlockStored([7], None, [1] * SIZE, SIZE, "CPU", group_idx=1), has_store=True)
    assert ledger.host.take() is None


def test_what_follows_a_block_that_only_a_tier_holds_is_named() -> None:
    """A block that is loaded back may be announced after its child."""
    ledger = told(on_device(7), in_tier("CPU", 7), BlockRemoved([7], "GPU"), on_device(8, parent=7))
    assert (ledger.blocks(), ledger.host.blocks()) == (SALTED[1:], SALTED[:1])
    assert not ledger.unknown


def test_a_block_without_tokens_is_on_the_device_again_if_a_tier_holds_it() -> None:
    """TensorRT-LLM moves blocks in this way."""
    again = [BlockStored([block], None, [], SIZE, "GPU") for block in (7, 9)]
    ledger = told(on_device(7), in_tier("CPU", 7), BlockRemoved([7], "GPU"), *again)
    assert (ledger.blocks(), ledger.unknown) == (SALTED[:1], 1)


def test_storage_that_is_not_the_pools_store_is_as_good_as_host_memory() -> None:
    for first, last in itertools.permutations(("STORAGE", "CPU_PINNED")):
        ledger = told(on_device(7), in_tier("STORAGE", 7), in_tier("CPU_PINNED", 7), BlockRemoved([7], first))
        assert (ledger.host.blocks(), ledger.store.blocks()) == (SALTED[:1], [])
        ledger.apply([BlockRemoved([7], last)])
        assert not ledger.host.blocks()
