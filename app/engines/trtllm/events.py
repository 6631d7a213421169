"""TensorRT-LLM's KV events, which are asked for, as those that vLLM publishes. Pure.

Of V1 and V2 of its cache manager. V2 numbers groups of layers, and names how blocks are hashed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from app.engines.kv_publisher import AllBlocksCleared, BlockRemoved, BlockStored, EngineHash, KvEvent
from app.messages.lease import CacheGroup

_MEDIA = ("GPU", "CPU", "DISK")  # of its cache levels
_HASHES = {None, "v1_block_key", "v2_sha256", "v2_sha256_64"}  # which cover a prompt from its beginning


class RankEvents:
    """The events of one attention-DP rank, in their order."""

    def __init__(self, block_size: int, groups: Sequence[CacheGroup] = ()) -> None:
        """`groups`: as `groups_of` has them."""
        self._block_size = block_size
        self._last: int | None = None  # number of the event before
        self._layers = {group.number: _LayerEvents(block_size, group.number) for group in groups}

    def read(self, event: Mapping[str, Any]) -> list[KvEvent]:
        """Reads what the event says. After a gap, what was known counts for nothing. Raises: KeyError, ValueError."""
        number = event["event_id"]
        events: list[KvEvent] = []
        if self._last is not None and number != self._last + 1:
            for layers in self._layers.values():
                layers.clear()
            events.append(AllBlocksCleared())
        self._last = number
        group = _number_of(event)
        if group not in self._layers:  # of an engine whose layers are all alike, the first is the only one
            self._layers[group] = _LayerEvents(self._block_size, group if self._layers else None)
        return events + self._layers[group].read(event["data"], is_known=event.get("hash_algo") in _HASHES)


def groups_of(events: Sequence[Mapping[str, Any]], block_size: int, longest: int) -> tuple[CacheGroup, ...] | None:
    """Groups of layers, by what an engine says when it begins.

    Empty: all its layers see all tokens. None: it has said nothing. `longest`: its `max_seq_len`, which stands for no
    window.
    """
    windows = {_number_of(event): int(event["window_size"]) for event in events if event["data"]["type"] == "created"}
    if not windows:
        return None
    widest = max(windows.values())
    if len(windows) == 1 and widest >= longest:
        return ()
    whole = min(longest, widest) if len({*windows.values()}) > 1 else longest
    return tuple(
        CacheGroup(number, "all", block_size)
        if window >= whole
        else CacheGroup(number, "window", block_size, window, every=block_size)
        for number, window in sorted(windows.items())
    )


def _number_of(event: Mapping[str, Any]) -> int:
    """The number of the group of layers. V1 gives none: it has one for each window."""
    group = event.get("layer_group_id")
    return int(event["window_size"] if group is None else group)


class _LayerEvents:
    """The events of one group of layers."""

    def __init__(self, block_size: int, number: int | None) -> None:
        """`number`: that is told; None: all layers are alike.

        Only then blocks are told to move between tiers: of several groups they count as held wherever they are.
        """
        self._block_size, self._number = block_size, number
        self._untold: set[EngineHash] = set()  # blocks that nobody is told of
        self._levels: dict[EngineHash, int] = {}  # of blocks that aren't on the GPU

    def clear(self) -> None:
        self._untold.clear()
        self._levels.clear()

    def read(self, data: Mapping[str, Any], *, is_known: bool) -> list[KvEvent]:
        """`is_known`: how its blocks are hashed."""
        match data["type"]:
            case "created":
                return []
            case "stored":
                return self._stored(data, is_known=is_known)
            case "removed":
                return self._removed(data["block_hashes"])
            case "updated":
                level = data["cache_level"]  # else its priority was
                return [] if level is None else self._moved(_hash(data["block_hash"]), level["new_value"])
        # It may have removed something.
        self.clear()
        return [AllBlocksCleared(), *self._left_out([0])]

    def _stored(self, data: Mapping[str, Any], *, is_known: bool) -> list[KvEvent]:
        """Events of stored blocks. Nothing is told of a partial block, and of what follows it."""
        size, blocks = self._block_size, data["blocks"]
        full = next((at for at, block in enumerate(blocks) if len(block["tokens"]) < size), len(blocks))
        told_count = next((at for at in range(full) if not (is_known and _is_text(blocks[at]))), full)
        hashes = [_hash(block["block_hash"]) for block in blocks]
        self._untold.update(hashes[told_count:])
        events = self._told(data, blocks[:told_count], hashes[:told_count]) if told_count else []
        return events + (self._left_out(hashes[told_count:full]) if told_count < full else [])

    def _told(
        self, data: Mapping[str, Any], blocks: Sequence[Mapping[str, Any]], hashes: list[EngineHash]
    ) -> list[KvEvent]:
        parent = data["parent_hash"]
        salt = data.get("cache_salt") or blocks[0].get("cache_salt")
        keys = [key for key in (data.get("lora_name"), salt) if key]
        stored_event = BlockStored(
            hashes,
            None if parent is None else _hash(parent),
            [token["token_id"] for block in blocks for token in block["tokens"]],
            self._block_size,
            lora_name=data.get("lora_name"),
            extra_keys=[keys, *([None] * (len(hashes) - 1))] if keys else None,
            group_idx=self._number,
        )
        events: list[KvEvent] = [stored_event]
        for theirs, block in zip(hashes, blocks, strict=True):
            if before := self._levels.pop(theirs, 0):
                events.append(BlockRemoved([theirs], _MEDIA[before]))
            events += self._moved(theirs, block["cache_level"])
        return events

    def _left_out(self, blocks: list[EngineHash]) -> list[KvEvent]:
        """Events by which these blocks are counted, as blocks whose tokens nobody knows."""
        stored_event = BlockStored(blocks, None, [], self._block_size, group_idx=self._number)
        return [stored_event, BlockRemoved(blocks, group_idx=self._number)]

    def _moved(self, theirs: EngineHash, level: int) -> list[KvEvent]:
        """Events of a block's move to that level, if it isn't there. They have no tokens: it was told of before."""
        if self._number is not None:
            return []
        before = self._levels.pop(theirs, 0)
        if level:
            self._levels[theirs] = level
        if level == before or theirs in self._untold:
            return []
        stored_event = BlockStored([theirs], None, [], self._block_size, medium=_MEDIA[level])
        return [stored_event, BlockRemoved([theirs], _MEDIA[before])]

    def _removed(self, blocks: list[int | str]) -> list[KvEvent]:
        removals: dict[int, list[EngineHash]] = {}  # by level
        for theirs in map(_hash, blocks):
            level = self._levels.pop(theirs, 0)
            if theirs in self._untold:
                self._untold.remove(theirs)
            else:
                removals.setdefault(level, []).append(theirs)
        return [BlockRemoved(hashes, _MEDIA[level], self._number) for level, hashes in removals.items()]


def _is_text(block: Mapping[str, Any]) -> bool:
    """Whether the block is of text, not of a picture.

    It is not said what a picture's keys count from, and in V2 its tokens are digits.
    """
    return not block.get("mm_keys") and all(isinstance(token["token_id"], int) for token in block["tokens"])


def _hash(theirs: int | str) -> EngineHash:
    """A number of 64 bits, or the digits of a longer one."""
    return bytes.fromhex(theirs) if isinstance(theirs, str) else theirs
