"""The block cache's invariants, whatever happens to it."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.engines.kv_publisher import AllBlocksCleared, BlockRemoved, BlockStored
from app.engines.mock.blocks import BlockManager, BlockTable

SIZE = 4


def admitted(blocks: BlockManager, tokens: list[int]) -> tuple[BlockTable, int | None]:
    table = BlockTable()
    cached_tokens = blocks.admit(table, tokens)
    if cached_tokens is not None:
        blocks.commit(table, tokens, len(tokens))
    return table, cached_tokens


class BlockMachine(RuleBasedStateMachine):
    """Sequences over few different tokens, so that they share prefixes, in a cache that is too small for them."""

    @initialize(total=st.integers(4, 12))
    def start(self, total: int) -> None:
        self.blocks = BlockManager(total, SIZE, record_events=True)
        self.live: list[tuple[BlockTable, list[int]]] = []
        self.parents: dict[int, int | None] = {}  # as the events tell
        self.announced: set[int] = set()

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=30), reuse=st.booleans())
    def admit(self, tokens: list[int], reuse: bool) -> None:
        table = BlockTable()
        used_blocks = self.blocks.used
        cached_tokens = self.blocks.admit(table, tokens, reuse=reuse)
        if cached_tokens is None:
            assert (self.blocks.used, table.blocks) == (used_blocks, [])
        else:
            assert cached_tokens < len(tokens)
            assert cached_tokens % SIZE == 0
            self.blocks.commit(table, tokens, len(tokens))
            self.live.append((table, tokens))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), more=st.lists(st.integers(0, 1), min_size=1, max_size=6))
    def decode(self, data: st.DataObject, more: list[int]) -> None:
        table, tokens = data.draw(st.sampled_from(self.live))
        if self.blocks.grow(table, len(tokens) + len(more)):
            tokens.extend(more)
            self.blocks.commit(table, tokens, len(tokens))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.live) - 1))
        self.blocks.release(self.live.pop(index)[0])

    @rule()
    def clear(self) -> None:
        assert self.blocks.clear() == (not self.live)

    @invariant()
    def every_block_is_held_or_free(self) -> None:
        references = Counter(block for table, _ in self.live for block in table.blocks)
        assert self.blocks.used == len(references)
        assert self.blocks.used + len(self.blocks._free) == self.blocks.total
        assert not references.keys() & self.blocks._free.keys()

    @invariant()
    def references_are_counted(self) -> None:
        references = Counter(block for table, _ in self.live for block in table.blocks)
        assert self.blocks._refs == [references[block] for block in range(self.blocks.total)]

    @invariant()
    def full_blocks_of_live_sequences_are_cached(self) -> None:
        for table, tokens in self.live:
            assert table.committed == len(tokens) // SIZE
            assert set(table.hashes[: table.committed]) <= self.blocks.cached

    @invariant()
    def events_tell_what_is_cached_and_the_cached_set_is_prefix_closed(self) -> None:
        for event in self.blocks.events:
            match event:
                case BlockStored():
                    chain = [event.parent_block_hash, *event.block_hashes]
                    self.parents.update(zip(event.block_hashes, chain, strict=False))
                    self.announced.update(event.block_hashes)
                    assert len(event.token_ids) == SIZE * len(event.block_hashes)
                case BlockRemoved():
                    self.announced.difference_update(event.block_hashes)
                case AllBlocksCleared():
                    self.announced.clear()
        self.blocks.events = []
        assert self.announced == self.blocks.cached
        for digest in self.announced:
            parent = self.parents[digest]
            assert parent is None or parent in self.announced


TestBlockMachine = BlockMachine.TestCase
TestBlockMachine.settings = settings(max_examples=60, stateful_step_count=30)


def test_the_least_recently_used_prefix_is_evicted_tail_first() -> None:
    """The prefix that was used last stays; the end of an evicted one goes first."""
    blocks = BlockManager(6, SIZE)
    old, new = [1] * 12, [2] * 12
    for tokens in (old, new):
        blocks.release(admitted(blocks, tokens)[0])
    assert len(blocks.cached) == 6
    blocks.release(admitted(blocks, [3] * 8)[0])
    assert admitted(blocks, [*new, 0])[1] == 12
    blocks = BlockManager(6, SIZE)
    for tokens in (old, new, [3] * 8):
        blocks.release(admitted(blocks, tokens)[0])
    assert admitted(blocks, [*old, 0])[1] == 4


def test_a_full_hit_leaves_the_last_token_to_be_computed() -> None:
    """The engine would have no logits to sample from without it."""
    blocks = BlockManager(8, SIZE)
    blocks.release(admitted(blocks, [1] * 8)[0])
    assert admitted(blocks, [1] * 8)[1] == 4
    assert admitted(blocks, [1] * 9)[1] == 8


def test_held_blocks_are_never_evicted() -> None:
    """A full cache refuses instead."""
    blocks = BlockManager(2, SIZE)
    table, _ = admitted(blocks, [1] * 8)
    assert admitted(blocks, [2] * 4)[1] is None
    assert not blocks.grow(table, 9)
    blocks.release(table)
    assert admitted(blocks, [2] * 4)[1] == 0


def test_the_same_tokens_behind_another_prefix_are_another_block() -> None:
    """Hashes are chained, so a block is known by all that comes before it."""
    blocks = BlockManager(8, SIZE)
    blocks.release(admitted(blocks, [1] * 4 + [2] * 4)[0])
    assert admitted(blocks, [3] * 4 + [2] * 4 + [0])[1] == 0


@pytest.mark.parametrize("held", [True, False])
def test_clearing_needs_an_idle_cache(held: bool) -> None:
    """Blocks in use can't be forgotten."""
    blocks = BlockManager(4, SIZE)
    table, _ = admitted(blocks, [1] * 8)
    if not held:
        blocks.release(table)
    assert blocks.clear() is not held
    assert bool(blocks.cached) is held
