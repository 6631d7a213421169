"""Finds where prompts can resume in an engine whose KV blocks are of several groups, by its events. No I/O.

An engine's hash of a block stands for the whole prefix up to its end, whatever the group: so it tells what blocks of
several groups have in common. One group names them, since its events have all hashes and tokens of a prompt. Those of
the others need not: an engine keeps of a window, or of states, only what a later prompt can resume with, and doesn't
say where that lies.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from app.kv.changes import Changes, Pending
from app.kv.events import AllBlocksCleared, BlockRemoved, BlockStored, EngineHash, KvEvent
from app.kv.groups import grid, naming, needed_from
from app.kv.ledger import DEVICE, Ledger, medium
from app.kv.tier_ledger import TierLedger
from app.messages.lease import CacheGroup


class _Block(Struct, frozen=True, gc=False):
    """A block of the group that names."""

    before: EngineHash | None  # the one before it; None: it is the first
    end: int  # tokens


class Beginnings:
    """The points up to which the layers that see everything hold a prompt, whether or not it can be resumed there.

    An engine that has a prompt's beginning in these layers alone computes it once more, and then keeps what the others
    need where prompts part.
    """

    def __init__(self) -> None:
        self._held: dict[EngineHash, bytes] = {}
        self._pending = Pending()

    def __len__(self) -> int:
        return len(self._held)

    def blocks(self) -> list[bytes]:
        return [*self._held.values()]

    def take(self) -> Changes | None:
        """The changes since the last call; None when there are none."""
        return self._pending.take()

    def add(self, theirs: EngineHash, ours: bytes) -> None:
        self._held[theirs] = ours
        self._pending.add(ours)

    def remove(self, theirs: EngineHash) -> None:
        if (ours := self._held.pop(theirs, None)) is not None:
            self._pending.remove(ours)

    def clear(self) -> None:
        self._held.clear()
        self._pending.clear()


class HybridLedger:
    """Its blocks are those at whose end a prompt can resume. Tiers behind the device are left out."""

    def __init__(
        self,
        groups: Sequence[CacheGroup],
        own_keys: Mapping[bytes, tuple[str, int] | None] = {},
        pictures: Mapping[int, tuple[int, str]] = {},
        *,
        tells_beginnings: bool = False,
    ) -> None:
        """`groups`: for which `grid` is known. `own_keys`, `pictures`: as in `KvEventSource`.

        `tells_beginnings`: somebody takes the changes of `beginnings`, too.
        """
        lines, naming_group = grid(groups), naming(groups)
        assert lines is not None
        self._step, self._size, self._naming = lines.step, naming_group.block_size, naming_group.number
        self._names = Ledger(naming_group.block_size, own_keys, pictures, group=naming_group.number)
        self.beginnings = Beginnings() if tells_beginnings and naming_group.sees == "all" else None
        self._others = [group for group in groups if group is not naming_group or group.sees != "all"]
        self._reach = lines.step + max((group.width for group in self._others), default=0)  # tokens
        # By group, and the engine's hash: how many of its blocks have it.
        self._held: dict[int, dict[EngineHash, int]] = {group.number: {} for group in groups}
        self._blocks: dict[EngineHash, _Block] = {}
        self._next: dict[EngineHash, tuple[EngineHash, ...]] = {}  # the blocks that follow one
        self._points: dict[EngineHash, bytes] = {}  # blocks at whose end a prompt can resume → our hash
        self._changed: dict[EngineHash, None] = {}  # since the last look
        self._pending = Pending()
        self._strange = 0  # blocks of groups that are not known
        self.host, self.store = TierLedger(), TierLedger()

    def __len__(self) -> int:
        return len(self._points)

    @property
    def keys(self) -> tuple[str, ...]:
        return self._names.keys

    @keys.setter
    def keys(self, keys: tuple[str, ...]) -> None:
        self._names.keys = keys

    @property
    def clears(self) -> int:
        return self._names.clears

    @property
    def placed(self) -> int:
        return self._names.placed

    @property
    def unknown(self) -> int:
        return self._names.unknown + self._strange

    def blocks(self) -> list[bytes]:
        return [*self._points.values()]

    def apply(self, events: Iterable[KvEvent]) -> None:
        for event in events:
            if isinstance(event, AllBlocksCleared):
                self._names.apply([event])
                self.clear()
            elif medium(event) == DEVICE:
                self._apply(event)

    def clear(self) -> None:
        """Forgets what the engine holds: it is unknown from now on."""
        self._names.clear()
        for counts in self._held.values():
            counts.clear()
        self._blocks.clear()
        self._next.clear()
        self._points.clear()
        self._changed.clear()
        self._pending.clear()
        if self.beginnings is not None:
            self.beginnings.clear()

    def take(self) -> Changes | None:
        """The changes of the points since the last call; None when there are none."""
        self._names.take()
        runs: dict[int, dict[EngineHash, int]] = {group.number: {} for group in self._others}
        for theirs in sorted(self._affected(), key=self._end):
            ours = self._names.find(theirs) if self._resumes(theirs, runs) else None
            if ours is not None and theirs not in self._points:
                self._points[theirs] = ours
                self._pending.add(ours)
            elif ours is None and theirs in self._points:
                self._pending.remove(self._points.pop(theirs))
        return self._pending.take()

    def _apply(self, event: BlockStored | BlockRemoved) -> None:
        number = self._naming if event.group_idx is None else event.group_idx
        if (counts := self._held.get(number)) is None:
            self._strange += len(event.block_hashes)
            return
        change = 1 if isinstance(event, BlockStored) else -1
        for theirs in event.block_hashes:
            if (count := counts.get(theirs, 0) + change) > 0:
                counts[theirs] = count
            else:
                counts.pop(theirs, None)
            self._changed[theirs] = None
        if number != self._naming:
            return
        self._names.apply([event])
        if isinstance(event, BlockStored):
            self._link(event)
        else:
            self._unlink(theirs for theirs in event.block_hashes if theirs not in counts)

    def _link(self, event: BlockStored) -> None:
        before = event.parent_block_hash
        for theirs in event.block_hashes:
            if (ours := self._names.find(theirs)) is None:
                return
            if theirs not in self._blocks:
                end = self._size + (0 if before is None else self._blocks[before].end)
                self._blocks[theirs] = _Block(before, end)
                if self.beginnings is not None and end % self._step == 0:
                    self.beginnings.add(theirs, ours)
                if before is not None:
                    self._next[before] = (*self._next.get(before, ()), theirs)
            before = theirs

    def _unlink(self, hashes: Iterable[EngineHash]) -> None:
        for theirs in hashes:
            block = self._blocks.pop(theirs, None)
            if self.beginnings is not None:
                self.beginnings.remove(theirs)
            if block is None or block.before is None:
                continue
            rest = tuple(other for other in self._next[block.before] if other != theirs)
            if rest:
                self._next[block.before] = rest
            else:
                del self._next[block.before]

    def _affected(self) -> Iterable[EngineHash]:
        """The blocks that have changed, and those behind them for which these may be needed."""
        changes, self._changed = self._changed, {}
        reaches: dict[EngineHash, int] = {}  # with how many tokens behind each have been looked at
        for first in sorted(changes, key=self._end, reverse=True):  # so that few are looked at twice
            stack = [(first, self._reach)]
            while stack:
                theirs, reach = stack.pop()
                if reaches.get(theirs, -1) < reach:
                    reaches[theirs] = reach
                    if reach >= self._size:
                        stack += [(behind, reach - self._size) for behind in self._next.get(theirs, ())]
        return reaches

    def _end(self, theirs: EngineHash) -> int:
        block = self._blocks.get(theirs)
        return 0 if block is None else block.end

    def _resumes(self, theirs: EngineHash, runs: dict[int, dict[EngineHash, int]]) -> bool:
        """Whether every group has what the token behind this block needs.

        `runs`: by group, for blocks before it that were asked about: at least so many tokens end there without a gap,
        as many as are there or were needed. It grows.
        """
        end = self._end(theirs)
        if not end or end % self._step:
            return False
        for group in self._others:
            blocks = self._held[group.number]
            if group.sees == "all":  # the blocks before it were there when it came, and leave after it
                has = theirs in blocks
            else:
                need, run_lengths = end - needed_from(group, end), runs[group.number]
                run_lengths[theirs] = self._run(group, theirs, need, run_lengths)
                has = run_lengths[theirs] >= need
            if not has:
                return False
        return True

    def _run(self, group: CacheGroup, theirs: EngineHash, need: int, places: Mapping[EngineHash, int]) -> int:
        """Tokens up to the block's end that the group has without a gap; if these are more, at least `need`."""
        blocks, tokens = self._held[group.number], 0
        at: EngineHash | None = theirs
        while tokens < need and at in blocks:
            tokens += group.block_size
            for _ in range(group.block_size // self._size):
                block = None if at is None else self._blocks.get(at)
                at = None if block is None else block.before
            if at is not None and at in places:
                return tokens + places[at]
        return tokens
