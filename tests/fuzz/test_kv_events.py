"""KV events of any kind: the ledger says what a naive model says, or the bytes are refused."""

from collections import Counter
from typing import Any, NamedTuple

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from app.kv.blocks import chain, root
from app.kv.events import BlockStored, KvBatch, decode_batch
from app.kv.ledger import Ledger
from app.messages.wire import encode
from tests.fuzz.damage import damaged
from tests.fuzz.examples import examples
from tests.values import values

SIZE = 2
tokens = st.integers(0, 1)
media = st.sampled_from([None, "GPU", "CPU"])
sizes = st.sampled_from([SIZE] * 4 + [3])
groups = st.sampled_from([None, 0, 1])


class Prefix(NamedTuple):
    """A block by its content: all tokens up to its end, and its salt. Its engine's hash is made of just that."""

    tokens: tuple[int, ...]
    salt: str

    @property
    def theirs(self) -> bytes:
        return repr(self).encode()

    @property
    def ours(self) -> bytes:
        return chain(root([self.salt] if self.salt else ()), self.tokens, SIZE)[-1]


prefixes = st.builds(Prefix, st.lists(tokens, min_size=0, max_size=4 * SIZE).map(tuple), st.sampled_from(["", "s"]))


class LedgerMachine(RuleBasedStateMachine):
    """Events in an order that no engine has: children without parents, removals of what was never there."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(SIZE)
        self.held: Counter[Prefix] = Counter()
        self.unknown = 0
        self.mirror: set[bytes] = set()  # what somebody has who only sees the changes

    @rule(
        parent=prefixes,
        more=st.lists(tokens, max_size=3 * SIZE + 1),
        medium=media,
        group=groups,
        size=st.sampled_from([SIZE] * 4 + [3]),
    )
    def store(self, parent: Prefix, more: list[int], medium: Any, group: Any, size: int) -> None:
        start = len(parent.tokens) // SIZE * SIZE
        parent = Prefix(parent.tokens[:start], parent.salt)
        whole = [*parent.tokens, *more]
        new = [Prefix(tuple(whole[:end]), parent.salt) for end in range(start + SIZE, len(whole) + 1, SIZE)]
        first = [parent.salt] if parent.salt and not start else None
        self.tell(
            {
                "type": "BlockStored",
                "block_hashes": [block.theirs for block in new],
                "parent_block_hash": parent.theirs if start else None,
                "token_ids": more,
                "block_size": size,
                "medium": medium,
                "group_idx": group,
                "extra_keys": [first, *([None] * (len(new) - 1))],
            }
        )
        if group == 1:  # of layers that were not told of
            self.unknown += len(new)
            return
        if medium == "CPU":
            return
        if size != SIZE or len(more) % SIZE or (start and not self.held[parent]):
            self.unknown += len(new)
        else:
            self.held.update(new)

    @rule(gone=st.lists(prefixes, max_size=3), medium=media, group=groups)
    def remove(self, gone: list[Prefix], medium: Any, group: Any) -> None:
        self.tell(
            {"type": "BlockRemoved", "block_hashes": [b.theirs for b in gone], "medium": medium, "group_idx": group}
        )
        if medium != "CPU" and group != 1:
            self.held -= Counter(gone)

    @rule(data=st.data())
    def remove_one_that_is_there(self, data: st.DataObject) -> None:
        if self.held:
            self.remove([data.draw(st.sampled_from(sorted(self.held)))], None, None)

    @rule()
    def clear(self) -> None:
        self.tell({"type": "AllBlocksCleared", "news": 1})
        self.held.clear()

    @rule()
    def look(self) -> None:
        changes = self.ledger.take()
        if changes is None:
            return
        if changes.cleared:
            self.mirror.clear()
        assert not set(changes.added) & set(changes.removed)
        self.mirror = (self.mirror - set(changes.removed)) | set(changes.added)

    @invariant()
    def both_say_the_same(self) -> None:
        there = {block.ours for block in self.held}
        assert set(self.ledger.blocks()) == there
        assert len(self.ledger) == len(there)
        assert self.ledger.unknown == self.unknown

    def teardown(self) -> None:
        self.look()
        assert self.mirror == {block.ours for block in self.held}

    def tell(self, event: dict[str, Any]) -> None:
        self.ledger.apply(decode_batch(encode([0.0, [event], 0])).events)


TestLedger = LedgerMachine.TestCase
TestLedger.settings = examples(60, stateful_step_count=25)


@examples(300)
@given(damaged(st.builds(KvBatch, st.floats(), values(list[BlockStored])).map(encode)))
def test_broken_bytes_are_events_or_a_decode_error(raw: bytes) -> None:
    """The ledger bears whatever was understood."""
    try:
        events = decode_batch(raw).events
    except msgspec.DecodeError:
        return
    ledger = Ledger(SIZE)
    ledger.apply(events)
    assert len(ledger) == len(set(ledger.blocks()))
