"""The ledger against what an engine's cache really holds, by the events of the mock's own block manager."""

from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.engines.mock.blocks import BlockManager, BlockTable
from app.kv.blocks import chain, prompt_hashes, root
from app.kv.events import AllBlocksCleared, BlockRemoved, BlockStored, KvBatch, decode_batch
from app.kv.ledger import Ledger
from app.messages.media import Media
from tests.ledgers import SIZE, told
from tests.present import present

encode = msgspec.msgpack.Encoder().encode


class LedgerMachine(RuleBasedStateMachine):
    """Sequences of two salts, two adapters, perhaps a picture, and few tokens in a cache that is too small for them."""

    @initialize(total=st.integers(4, 12))
    def start(self, total: int) -> None:
        self.blocks = BlockManager(total, SIZE, record_events=True)
        self.live: list[BlockTable] = []
        self.prompts: list[tuple[list[int], str | None, str | None, list[Media]]] = []
        self.ledger = Ledger(SIZE)
        self.mirror: set[bytes] = set()  # what somebody has who only sees the changes

    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=30),
        salt=st.sampled_from([None, "a"]),
        adapter=st.sampled_from([None, "b@1"]),
        picture=st.none() | st.builds(Media, st.just("image"), st.sampled_from("xy"), st.just(()), st.integers(0, 9),
                                      st.integers(1, 9)),
        keep=st.booleans(),
    )  # fmt: skip
    def run(self, tokens: list[int], salt: str | None, adapter: str | None, picture: Media | None, keep: bool) -> None:
        media = [] if picture is None else [picture]
        table = BlockTable(salt, adapter, media)
        if self.blocks.admit(table, tokens) is None:
            return
        self.blocks.commit(table, tokens, len(tokens))
        self.prompts.append((tokens, salt, adapter, media))
        if keep:
            self.live.append(table)
        else:
            self.blocks.release(table)

    @precondition(lambda self: self.live)
    @rule()
    def release(self) -> None:
        self.blocks.release(self.live.pop())

    @rule()
    def clear(self) -> None:
        self.blocks.clear()

    @invariant()
    def the_ledger_holds_what_the_cache_holds(self) -> None:
        if not hasattr(self, "blocks"):
            return
        batch = decode_batch(encode((0.0, self.blocks.events, 0)))
        self.blocks.events = []
        self.ledger.apply(batch.events)
        cached_blocks = len(self.blocks.cached)
        assert (len(self.ledger), self.ledger.unknown) == (cached_blocks, 0)
        if changes := self.ledger.take():
            if changes.cleared:
                self.mirror.clear()
            self.mirror -= set(changes.removed)
            self.mirror |= set(changes.added)
        assert self.mirror == set(self.ledger.blocks())
        assert len(self.mirror) == cached_blocks
        chains = [
            prompt_hashes([*tokens, 0], SIZE, s, adapter, media=media) for tokens, s, adapter, media in self.prompts
        ]
        possible = {packed_hashes[i : i + 8] for packed_hashes in chains for i in range(0, len(packed_hashes), 8)}
        assert self.mirror <= possible


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=60, stateful_step_count=30)


def stored(hashes: list[int | bytes], parent: int | bytes | None = None, **more: Any) -> BlockStored:
    return BlockStored(hashes, parent, [1] * (SIZE * len(hashes)), more.pop("block_size", SIZE), **more)


def test_what_keeps_prompts_apart_is_in_the_hashes_however_an_engine_tells_it() -> None:
    """vLLM lists it for each block, SGLang has a field for each of the two."""
    theirs = told(stored([1], lora_name="l", extra_keys=[["l", "salt"]]), stored([2], extra_keys=[["salt"]]))
    ours = told(stored([-1], lora_name="l", cache_salt="salt"), stored([-2], cache_salt="salt"))
    expected_blocks = [chain(root(keys), [1] * SIZE, SIZE)[0] for keys in (["l", "salt"], ["salt"])]
    assert theirs.blocks() == ours.blocks() == expected_blocks


def test_twins_are_gone_when_both_are() -> None:
    """vLLM keeps two blocks of one hash when two requests computed it at once, and tells of each."""
    ledger = told(stored([1, 2]), stored([1]))
    ledger.apply([BlockRemoved([1])])
    assert len(ledger) == 2
    ledger.apply([BlockRemoved([1])])
    assert len(ledger) == 1


def test_what_came_and_went_between_two_looks_is_no_addition() -> None:
    ledger = told(stored([1]), BlockRemoved([1]))
    assert present(ledger.take()).added == []
    assert ledger.take() is None


def test_clearing_forgets_what_was_added_before_it_and_not_after() -> None:
    ledger = told(stored([1]), AllBlocksCleared(), stored([2]))
    changes = present(ledger.take())
    assert (changes.cleared, len(changes.added), changes.removed) == (True, 1, [])


def test_blocks_that_cannot_be_translated_are_counted_and_left_out() -> None:
    """A parent nobody told of, another block size, an unknown key: a wrong hash would be worse than none."""
    ledger = told(
        stored([2], 1),
        stored([3], block_size=8),
        BlockStored([5], None, [1] * (2 * SIZE), SIZE),  # a hybrid model's: some of the blocks are left out
        stored([4], extra_keys=[[["picture", 3, "and more"]]]),
    )
    assert (len(ledger), ledger.unknown, ledger.take()) == (0, 4, None)


def test_other_tiers_and_other_layer_groups_are_not_the_devices_cache() -> None:
    """Blocks in host memory have to be fetched first."""
    ledger = told(stored([1], medium="GPU", group_idx=0), stored([2], medium="CPU"), stored([3], group_idx=1))
    ledger.apply([BlockRemoved([1], medium="CPU"), BlockRemoved([1], group_idx=1)])
    assert (len(ledger), ledger.unknown) == (1, 1)  # of layers that were not told of


def test_a_lora_and_a_salt_are_part_of_the_first_hash() -> None:
    """The order is that in which vLLM lists them; the blocks after it have the LoRA's name too."""
    ledger = told(stored([1, 2], lora_name="l", extra_keys=[["l", "s"], ["l"]]))
    assert ledger.blocks() == chain(root(["l", "s"]), [1] * SIZE * 2, SIZE)


def test_a_batch_may_hold_byte_hashes_and_fields_we_do_not_know() -> None:
    """vLLM sends either kind of hash, and adds fields from version to version."""
    event = {"type": "BlockStored", "block_hashes": [b"h" * 32], "parent_block_hash": None, "token_ids": [1] * SIZE}
    raw = encode([1.0, [event | {"block_size": SIZE, "lora_id": None, "news": 1}], 0, "more"])
    batch = decode_batch(raw)
    assert isinstance(batch, KvBatch)
    assert len(told(*batch.events)) == 1


def test_blocks_with_pictures_have_the_hashes_that_prompts_are_looked_up_by() -> None:
    """Events may begin in the middle of a picture."""
    media = [Media("image", "p", (), 2, 2 * SIZE), Media("image", "q", (), 2 * SIZE + 3, 1)]
    prompt = [1] * (4 * SIZE + 1)
    ledger = told(
        stored([1], extra_keys=[["l", ["p", 2], "s"]]),
        stored([2, 3, 4], 1, extra_keys=[["l", ["p", 2 - SIZE]], ["l", ["p", 2 - 2 * SIZE], ["q", 3]], ["l"]]),
    )
    assert b"".join(ledger.blocks()) == prompt_hashes(prompt, SIZE, "s", "l", media=media)
    assert ledger.unknown == 0


def test_an_engines_own_numbers_for_pictures_become_placeholders_and_keys() -> None:
    """SGLang's: a picture's tokens are four numbers in turn. It may begin in an earlier event than it ends."""
    media = [Media("image", "p", (), 2, 2 * SIZE), Media("image", "q", (), 2 * SIZE + 3, SIZE + 1)]
    prompt = [7 if any(0 <= at - m.offset < m.length for m in media) else 1 for at in range(4 * SIZE + 1)]
    numbers = {m.sha256: [2**40 + 10 * place + turn for turn in range(4)] for place, m in enumerate(media)}
    engine_tokens = list(prompt)
    for m in media:
        engine_tokens[m.offset : m.offset + m.length] = [numbers[m.sha256][turn % 4] for turn in range(m.length)]
    pictures = {number: (7, sha256) for sha256, all_four in numbers.items() for number in all_four}
    blocks = [engine_tokens[start : start + SIZE] for start in range(0, 4 * SIZE, SIZE)]
    first, last = BlockStored([1], None, blocks[0], SIZE), BlockStored([4], 3, blocks[3], SIZE)
    ledger = told(first, BlockStored([2, 3], 1, blocks[1] + blocks[2], SIZE), pictures=pictures)
    ledger.apply([last])
    assert b"".join(ledger.blocks()) == prompt_hashes(prompt, SIZE, media=media)
    ledger.apply([BlockRemoved([4]), last])
    assert b"".join(ledger.blocks()) == prompt_hashes(prompt, SIZE, media=media)
    ledger.apply([BlockStored([5], 4, [2**50] * SIZE, SIZE), BlockStored([6], 5, [1] * SIZE, SIZE)])
    assert (len(ledger), ledger.unknown) == (4, 2), "a number of no known picture, and what is behind it"
