"""The blocks that one engine has cached: its block hashes translated into ours. No I/O."""

import math
from collections.abc import Iterable, Mapping

from app.kv.blocks import chain, media_key, root
from app.kv.changes import Changes, Pending
from app.kv.chunks import Chunks, is_chunk
from app.kv.events import AllBlocksCleared, BlockRemoved, BlockStored, EngineHash, KvEvent
from app.kv.stand_ins import OpenPicture, has_stand_ins, translate
from app.kv.tier_ledger import TierLedger

# Where blocks lie, as vLLM and SGLang name it. Connectors have other names besides, and small letters.
DEVICE, _STORE, _ELSEWHERE = "GPU", "STORAGE", "EXTERNAL"
_REMOTE = "REMOTE"  # a locality: on another host


class Ledger:
    """Given every event in order, it has exactly the engine's cached blocks."""

    def __init__(
        self,
        block_size: int,
        own_keys: Mapping[bytes, tuple[str, int] | None] = {},
        pictures: Mapping[int, tuple[int, str]] = {},
        *,
        has_store: bool = False,
        most_in_host: float = math.inf,
        group: int = 0,
    ) -> None:
        """`own_keys`, `pictures`: as in `KvEventSource`. `has_store`: one of ours; what lies in any other storage is
        as good as in the host's memory. `most_in_host`: blocks of a medium, for what may never say what it drops.
        `group`: the one whose blocks these are.
        """
        self._block_size, self._own_keys, self._pictures = block_size, own_keys, pictures
        self._open: dict[EngineHash, OpenPicture] = {}  # in which blocks end, of an engine that has such numbers
        self._groups = (None, group)
        self.keys: tuple[str, ...] = ()  # before the engine's own: see `blocks.root`
        # Engine's hash → ours, and how many of the engine's blocks have it: vLLM keeps duplicates computed at the same
        # time, and reports each of them stored and removed.
        self._blocks: dict[EngineHash, tuple[bytes, int]] = {}
        self._pending = Pending()
        self.host, self.store = TierLedger(most_in_host), TierLedger()
        self._has_store, self._most_in_host = has_store, most_in_host
        self._chunks: Chunks | None = None  # made for the first one
        self.clears = 0  # how often the engine said that it cleared its cache
        self.placed = self.unknown = 0  # stored blocks of the device that were translated, and that could not be

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
        """Forgets what the engine itself holds, on the device and in the host's memory: it is unknown from now on."""
        self.host.clear()
        self._blocks.clear()
        self._open.clear()
        self._pending.clear()
        if self._chunks is not None:
            self._chunks.clear()

    def take(self) -> Changes | None:
        """The changes of the device's cache since the last call; None when there are none."""
        return self._pending.take()

    def _store(self, event: BlockStored) -> None:
        if event.group_idx not in self._groups:
            self.unknown += len(event.block_hashes)
            return
        where = medium(event)
        if where != DEVICE:
            if (tier := self._tier(event, where)) is not None:
                self._store_behind(event, tier, where)
            return
        hashes = self._named(event) if event.token_ids else [self.find(theirs) for theirs in event.block_hashes]
        for theirs, ours in zip(event.block_hashes, hashes or [None] * len(event.block_hashes), strict=True):
            if ours is None:
                self.unknown += 1
                continue
            self.placed += 1
            count = self._blocks[theirs][1] if theirs in self._blocks else 0
            self._blocks[theirs] = ours, count + 1
            if not count:
                self._pending.add(ours)
                for tier in (self.host, self.store):
                    tier.name(theirs, ours)
                if self._chunks is not None and (part := self._chunks.computed(ours)) is not None:
                    for tier in (self.host, self.store):
                        tier.name(part, ours)

    def _store_behind(self, event: BlockStored, tier: TierLedger, where: str) -> None:
        if not is_chunk(event, self._block_size):
            tier.add(event.block_hashes, where, self.find)
            return
        if self._chunks is None:
            self._chunks = Chunks(self._block_size, self.blocks(), self._most_in_host)
        tier.add(self._chunks.add(event, root(self.keys)), where, self._chunks.find)
        tier.remove(self._chunks.forget(), where)

    def _named(self, event: BlockStored) -> list[bytes] | None:
        """Our hashes of the blocks, by their tokens; None: these or what else they depend on isn't known."""
        parent, tokens, extras = self._parent(event), event.token_ids, _extras(event, self._own_keys)
        ends: list[OpenPicture | None] = []
        if has_stand_ins(tokens):
            before = None if event.parent_block_hash is None else self._open.get(event.parent_block_hash)
            translation = translate(tokens, self._block_size, self._pictures, before)
            tokens, extras, ends = translation or (tokens, None, [])
        whole = len(event.token_ids) == len(event.block_hashes) * self._block_size  # else tokens are missing
        if parent is None or extras is None or not whole or event.block_size != self._block_size:
            return None
        self._open |= {theirs: end for theirs, end in zip(event.block_hashes, ends, strict=False) if end is not None}
        return chain(parent, tokens, self._block_size, extras)

    def _tier(self, event: BlockStored | BlockRemoved, where: str) -> TierLedger | None:
        """The tier that an event tells of; None: elsewhere, and nobody says whether blocks can be loaded from there."""
        if where == _STORE and self._has_store:
            return self.store
        return None if where == _ELSEWHERE or event.locality == _REMOTE else self.host

    def find(self, theirs: EngineHash) -> bytes | None:
        """Our hash of a block that some tier holds, or the device."""
        if theirs in self._blocks:
            return self._blocks[theirs][0]
        return self.host.find(theirs) or self.store.find(theirs)

    def _parent(self, event: BlockStored) -> bytes | None:
        """Our hash of the parent block; None when it is unknown."""
        keys = event.extra_keys or []
        if event.parent_block_hash is None:
            first = keys[0] if keys else [key for key in (event.lora_name, event.cache_salt) if key is not None]
            return root([*self.keys, *(key for key in first or () if isinstance(key, str))])
        return self.find(event.parent_block_hash)

    def _remove(self, event: BlockRemoved) -> None:
        if event.group_idx not in self._groups:
            return
        where = medium(event)
        if where != DEVICE:
            if (tier := self._tier(event, where)) is not None:
                parts = [] if self._chunks is None else self._chunks.remove(event.block_hashes)
                tier.remove([*event.block_hashes, *parts], where)
            return
        for theirs in event.block_hashes:
            entry = self._blocks.get(theirs)
            if entry is None:
                continue
            ours, count = entry
            if count > 1:
                self._blocks[theirs] = ours, count - 1
                continue
            del self._blocks[theirs]
            self._open.pop(theirs, None)
            self._pending.remove(ours)
            if self._chunks is not None:
                self._chunks.dropped(ours)


def medium(event: BlockStored | BlockRemoved) -> str:
    return (event.medium or DEVICE).upper()


def _extras(event: BlockStored, own: Mapping[bytes, tuple[str, int] | None]) -> dict[int, bytes] | None:
    """The extra keys of blocks that overlap pictures or sound; None: blocks depend on what we don't know."""
    extras: dict[int, bytes] = {}
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
            extras[number] = media_key(media)
    return extras
