"""Points at which prompts can resume in engines with several groups of KV blocks; `tests/contract` has real ones."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kv.blocks import point_hashes
from app.kv.events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from app.kv.groups import blocks_of_step, grid, leaves, names_all
from app.kv.hybrid_ledger import HybridLedger
from app.messages.lease import CacheGroup, Grid
from tests.leases import worker
from tests.present import present

A = 2  # tokens in a block of the group that sees everything
ALL = CacheGroup(9, "all", A)
MIXES = {
    "windows before": [CacheGroup(0, "window", A, 5), CacheGroup(1, "window", A, 8), ALL],
    "states, of twice as long blocks": [CacheGroup(0, "state", 2 * A), ALL],
    "chunks": [CacheGroup(3, "chunk", A, 4 * A), ALL],
    "everything": [CacheGroup(0, "state", A), CacheGroup(1, "window", 2 * A, 4), CacheGroup(2, "chunk", A, 6), ALL],
    "two that see everything": [CacheGroup(0, "all", 2 * A), ALL],
    "a window alone": [CacheGroup(0, "window", A, 5)],
}  # fmt: skip
Prefix = tuple[int, ...]


def can_resume(groups: list[CacheGroup], held: dict[int, Counter[Prefix]], prefix: Prefix) -> bool:
    """Whether each group has all blocks that the next token needs: the definition."""
    for group in groups:
        size, end = group.block_size, len(prefix)
        if end % size:
            return False
        match group.sees:
            case "window":  # its own place and those of the width - 1 tokens before it
                first = max(0, (end - (group.width - 1)) // size * size)
            case "chunk":
                first = end // group.width * group.width
            case "state":
                first = end - size
            case "all":
                first = 0
        if not all(held[group.number][prefix[:at]] for at in range(first + size, end + 1, size)):
            return False
    return True


class Engine:
    """Some prompts' blocks in its groups, and what it tells of them."""

    def __init__(self, groups: list[CacheGroup]) -> None:
        self.groups = groups
        self.held: dict[int, Counter[Prefix]] = {group.number: Counter() for group in groups}
        self.events: list[KvEvent] = []

    def store(self, prompt: Prefix, group: CacheGroup, kept: set[int]) -> None:
        """The blocks that are not there; of a group that need not tell all, those that begin at `kept`."""
        size, counts = group.block_size, self.held[group.number]
        full, starts = self._tells_all(group), range(0, len(prompt) - size + 1, size)
        first = next((at for at in starts if not counts[prompt[: at + size]]), len(prompt)) if full else 0
        new_prefixes = [prompt[: at + size] for at in starts if at >= first and (full or at in kept)]
        if new_prefixes:
            parent = hash(prompt[:first]) if first else None
            tokens = list(prompt[first : len(prompt) // size * size])
            self.events.append(
                BlockStored([hash(one) for one in new_prefixes], parent, tokens, size, group_idx=group.number)
            )
            counts.update(new_prefixes)

    def remove(self, group: CacheGroup, number: int) -> None:
        """One of its blocks: of a group that tells all, one that no other follows."""
        counts = self.held[group.number]
        there = [one for one in sorted(counts) if counts[one] > 0]
        if self._tells_all(group):
            there = [one for one in there if not any(is_behind(other, one) for other in there)]
        if there:
            prefix = there[number % len(there)]
            counts[prefix] -= 1
            self.events.append(BlockRemoved([hash(prefix)], group_idx=group.number))

    def _tells_all(self, group: CacheGroup) -> bool:
        return group.sees == "all" or len(self.groups) == 1


def is_behind(other: Prefix, one: Prefix) -> bool:
    return len(other) > len(one) and other[: len(one)] == one


def points(groups: list[CacheGroup], engine: Engine) -> set[bytes]:
    lines = present(grid(groups))
    naming = ALL if ALL in groups else groups[0]
    hashes = set()
    for prefix, count in engine.held[naming.number].items():
        if count > 0 and can_resume(groups, engine.held, prefix):
            hashes.add(point_hashes([*prefix, 0], lines)[-8:])
    return hashes


def beginnings(groups: list[CacheGroup], engine: Engine) -> set[bytes]:
    """Points up to which the group that names blocks has a prompt."""
    lines = present(grid(groups))
    there = [prefix for prefix, count in engine.held[ALL.number].items() if count > 0]
    return {point_hashes([*prefix, 0], lines)[-8:] for prefix in there if len(prefix) % lines.step == 0}


@pytest.mark.parametrize("mix", MIXES)
@given(data=st.data())
def test_its_blocks_are_where_every_group_has_what_the_next_token_needs(mix: str, data: st.DataObject) -> None:
    groups = MIXES[mix]
    engine, ledger = Engine(groups), HybridLedger(groups, tells_beginnings=True)
    index: set[bytes] = set()
    known_beginnings: set[bytes] = set()
    prompts = st.lists(st.integers(0, 1), min_size=A, max_size=16).map(tuple)
    for _ in range(data.draw(st.integers(1, 8))):
        for _ in range(data.draw(st.integers(1, 3))):
            group = data.draw(st.sampled_from(groups))
            if data.draw(st.booleans()):
                prompt = data.draw(prompts)
                kept_starts = data.draw(st.sets(st.sampled_from(range(0, 16, A))))
                order = groups if data.draw(st.booleans()) else groups[::-1]  # a batch has them in any order
                for one in order:
                    engine.store(prompt, one, kept_starts)
            else:
                engine.remove(group, data.draw(st.integers(0, 9)))
        ledger.apply(engine.events)
        engine.events = []
        if (changes := ledger.take()) is not None:
            index = (index - set(changes.removed)) | set(changes.added)
        assert index == set(ledger.blocks()) == points(groups, engine)
        assert len(ledger) == len(index)
        if ledger.beginnings is not None:
            if (changes := ledger.beginnings.take()) is not None:
                known_beginnings = (known_beginnings - set(changes.removed)) | set(changes.added)
            assert known_beginnings == set(ledger.beginnings.blocks()) == beginnings(groups, engine)
            assert len(ledger.beginnings) == len(known_beginnings) >= len(index)
    assert ledger.unknown == 0
    assert (ledger.beginnings is None) == (mix == "a window alone")


def whole_prompt() -> tuple[Engine, HybridLedger]:
    """An engine whose layers hold all blocks of a prompt, and a ledger that has not heard of it."""
    groups = MIXES["windows before"]
    engine = Engine(groups)
    for group in groups:
        engine.store(tuple(range(8)), group, set(range(0, 8, A)))
    return engine, HybridLedger(groups, tells_beginnings=True)


def test_what_it_knew_is_gone_when_the_engine_has_cleared_its_cache() -> None:
    engine, ledger = whole_prompt()
    ledger.apply(engine.events)
    ledger_beginnings = present(ledger.beginnings)
    assert ledger.take()
    assert ledger_beginnings.take()
    ledger.apply([AllBlocksCleared()])
    changes, beginning_changes = present(ledger.take()), present(ledger_beginnings.take())
    assert (beginning_changes.cleared, ledger_beginnings.blocks()) == (True, [])
    assert (changes.cleared, ledger.blocks(), ledger.clears) == (True, [], 1)
    ledger.apply(engine.events)
    assert ledger.take() is not None
    assert len(ledger) == 4


def test_a_group_that_is_not_known_is_counted() -> None:
    ledger = HybridLedger(MIXES["chunks"])
    ledger.apply([BlockStored([1, 2], None, [1, 2, 3, 4], A, group_idx=7)])
    assert (ledger.unknown, ledger.placed, ledger.take()) == (2, 0, None)


def test_sparse_events_of_a_model_whose_layers_all_have_windows_are_counted() -> None:
    """Nothing says which of its blocks the hashes mean."""
    ledger = HybridLedger(MIXES["a window alone"])
    ledger.apply([BlockStored([3], None, list(range(6)), A, group_idx=0)])
    assert (ledger.unknown, ledger.take()) == (1, None)


def test_prompts_are_hashed_by_the_blocks_that_tell_all_and_looked_up_where_all_groups_end_one() -> None:
    lines = grid([CacheGroup(0, "window", 512, 128), CacheGroup(1, "all", 32)])
    assert lines == Grid(32, 512, everywhere=False)
    assert grid([CacheGroup(0, "all", 32)]) == Grid(32, 32, everywhere=True)
    assert grid([CacheGroup(0, "state", 48), CacheGroup(1, "all", 32)]) is None
    prompt = list(range(1100))
    whole = point_hashes(prompt, Grid(32, 32))
    assert point_hashes(prompt, lines) == whole[15 * 8 : 16 * 8] + whole[31 * 8 : 32 * 8]


def test_a_prompt_leaves_the_points_at_which_all_its_layers_are_kept() -> None:
    sees_all, chunks = CacheGroup(0, "all", 32), CacheGroup(1, "chunk", 32, 256)
    sparse, each_256, whole = [CacheGroup(2, "window", 32, 128, every) for every in (0, 256, 32)]
    point_steps = {
        "chunks": leaves([sees_all, chunks]),
        "windows at its end": leaves([sees_all, sparse]),
        "windows each 256": leaves([sees_all, each_256]),
        "all of windows": leaves([sees_all, whole]),
        "larger blocks": leaves([sees_all, CacheGroup(1, "window", 512, 128, 512)]),
        "one kind at its end": leaves([sees_all, whole, CacheGroup(3, "window", 32, 64)]),
        "a state": leaves([sees_all, CacheGroup(1, "state", 32)]),
    }
    assert point_steps == {
        "chunks": 32, "windows at its end": 0, "windows each 256": 256, "all of windows": 32, "larger blocks": 512,
        "one kind at its end": 0, "a state": 0,
    }  # fmt: skip


def test_events_name_all_blocks_where_a_layer_sees_all_tokens_or_windows_are_kept_without_a_gap() -> None:
    windows = {every: names_all([CacheGroup(0, "window", 32, 128, every)]) for every in (0, 32, 128, 256)}
    assert windows == {0: False, 32: True, 128: True, 256: False}
    assert names_all([CacheGroup(0, "window", 32, 128), CacheGroup(1, "all", 32)])
    assert names_all([CacheGroup(0, "chunk", 32, 256)])
    assert not names_all([CacheGroup(0, "state", 32)])


def test_points_are_counted_in_blocks_of_the_engine() -> None:
    grids = (None, Grid(32, 32), Grid(32, 512, False))
    assert [blocks_of_step(worker(block_size=32, grid=one)) for one in grids] == [1, 1, 16]


def test_nothing_is_kept_of_blocks_that_have_left() -> None:
    engine, ledger = whole_prompt()
    for group in engine.groups * 4:
        engine.remove(group, 0)
    ledger.apply(engine.events)
    assert ledger.take() is None
    assert (len(present(ledger.beginnings)), present(ledger.beginnings)._held) == (0, {})
    assert not any((ledger._blocks, ledger._next, ledger._points, ledger._changed, *ledger._held.values()))
    assert ledger._names.take() is None
    assert not len(ledger._names)
