"""The blocks that one engine has cached: its block hashes translated into ours. No I/O."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from app.kv.blocks import chain, media_key, root
from app.kv.events import AllBlocksCleared, BlockRemoved, BlockStored, EngineHash, KvEvent
from app.kv.stand_ins import OpenPicture, has_stand_ins, translate

# Events of other tiers (host, disk) are ignored: routing doesn't know these tiers.
_DEVICE = (None, "GPU")
# Hybrid models cache several groups of layers, each with its own blocks; only the first counts.
_GROUP = (None, 0)


class Changes(NamedTuple):
    """Changes of the cache since the last call of `take`. `cleared` came first."""

    cleared: bool
    added: list[bytes]
    removed: list[bytes]


class Ledger:
    """Given every event in order, it has exactly the engine's cached blocks."""

    def __init__(
        self,
        block_size: int,
        own_keys: Mapping[bytes, tuple[str, int] | None] = {},
        pictures: Mapping[int, tuple[int, str]] = {},
    ) -> None:
        """`own_keys`, `pictures`: as in `KvEventSource`."""
        self._block_size, self._own_keys, self._pictures = block_size, own_keys, pictures
        self._open: dict[EngineHash, OpenPicture] = {}  # in which blocks end, of an engine that has such numbers
        self.keys: tuple[str, ...] = ()  # before the engine's own: see `blocks.root`
        # Engine's hash → ours, and how many of the engine's blocks have it: vLLM keeps duplicates computed at the same
        # time, and reports each of them stored and removed.
        self._blocks: dict[EngineHash, tuple[bytes, int]] = {}
        self._changes: dict[bytes, bool] = {}  # our hash → whether it is cached now
        self._cleared = False
        self.clears = 0  # how often the engine said that it cleared its cache
        self.unknown = 0  # stored blocks that could not be translated

    def __len__(self) -> int:
        return len(self._blocks)

    def blocks(self) -> list[bytes]:
        return [ours for ours, _ in self._blocks.values()]

    def apply(self, events: Iterable[KvEvent]) -> None:
        for event in events:
            if isinstance(event, BlockStored):
                self._store(event)
            elif isinstance(event, BlockRemoved):
                self._remove(event)
            else:
                assert isinstance(event, AllBlocksCleared)
                self.clears += 1
                self.clear()

    def clear(self) -> None:
        self._blocks.clear()
        self._open.clear()
        self._changes.clear()
        self._cleared = True

    def take(self) -> Changes | None:
        """The changes since the last call; None when there are none."""
        if not self._changes and not self._cleared:
            return None
        added = [block for block, there in self._changes.items() if there]
        removed = [block for block, there in self._changes.items() if not there]
        changes = Changes(self._cleared, added, removed)
        self._changes, self._cleared = {}, False
        return changes

    def _store(self, event: BlockStored) -> None:
        if event.medium not in _DEVICE or event.group_idx not in _GROUP:
            return
        parent, tokens, extras = self._parent(event), event.token_ids, _extras(event, self._own_keys)
        ends: list[OpenPicture | None] = []
        if has_stand_ins(tokens):
            before = None if event.parent_block_hash is None else self._open.get(event.parent_block_hash)
            seen = translate(tokens, self._block_size, self._pictures, before)
            tokens, extras, ends = seen or (tokens, None, [])
        whole = len(event.token_ids) == len(event.block_hashes) * self._block_size  # else tokens are missing
        if parent is None or extras is None or not whole or event.block_size != self._block_size:
            self.unknown += len(event.block_hashes)
            return
        self._open |= {theirs: end for theirs, end in zip(event.block_hashes, ends, strict=False) if end is not None}
        made = chain(parent, tokens, self._block_size, extras)
        for theirs, ours in zip(event.block_hashes, made, strict=True):
            count = self._blocks[theirs][1] if theirs in self._blocks else 0
            self._blocks[theirs] = ours, count + 1
            if not count:
                self._changes[ours] = True

    def _parent(self, event: BlockStored) -> bytes | None:
        """Our hash of the parent block; None when it is unknown."""
        keys = event.extra_keys or []
        if event.parent_block_hash is None:
            first = keys[0] if keys else [key for key in (event.lora_name, event.cache_salt) if key is not None]
            return root([*self.keys, *(key for key in first or () if isinstance(key, str))])
        known = self._blocks.get(event.parent_block_hash)
        return known[0] if known else None

    def _remove(self, event: BlockRemoved) -> None:
        if event.medium not in _DEVICE or event.group_idx not in _GROUP:
            return
        for theirs in event.block_hashes:
            known = self._blocks.get(theirs)
            if known is None:
                continue
            ours, count = known
            if count > 1:
                self._blocks[theirs] = ours, count - 1
                continue
            del self._blocks[theirs]
            self._open.pop(theirs, None)
            self._changes[ours] = False


def _extras(event: BlockStored, own: Mapping[bytes, tuple[str, int] | None]) -> dict[int, bytes] | None:
    """The extra keys of blocks that overlap pictures or sound; None: blocks depend on what we don't know."""
    found: dict[int, bytes] = {}
    for number, keys in enumerate(event.extra_keys or ()):
        media: list[tuple[str, int]] = []
        for key in keys or ():
            match key:
                case str():  # LoRA name or salt: in the first block's parent
                    continue
                case [str(identifier), int(offset)]:
                    media.append((identifier, offset))
                case bytes() if key in own:
                    if (ours := own[key]) is not None:
                        media.append(ours)
                case _:
                    return None
        if media:
            found[number] = media_key(media)
    return found
