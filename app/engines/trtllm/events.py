"""TensorRT-LLM's KV events, which are asked for, as those that vLLM publishes. Pure."""

from collections.abc import Mapping
from typing import Any

from app.engines.kv_publisher import AllBlocksCleared, BlockRemoved, BlockStored, EngineHash, KvEvent

_MEDIA = ("GPU", "CPU", "DISK")  # of its cache levels


class RankEvents:
    """Of one attention-DP rank, in the order of its events."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._last: int | None = None  # number of the event before
        self._window = 0  # the largest: other layers look back less far, and keep blocks of their own
        self._untold: set[EngineHash] = set()  # blocks that nobody is told of
        self._levels: dict[EngineHash, int] = {}  # of blocks that aren't on the GPU

    def read(self, event: Mapping[str, Any]) -> list[KvEvent]:
        """What the event says. After a gap what was known counts for nothing. Raises: KeyError, ValueError."""
        number = event["event_id"]
        said: list[KvEvent] = []
        if self._last is not None and number != self._last + 1:
            self._untold.clear()
            self._levels.clear()
            said.append(AllBlocksCleared())
        self._last = number
        window, data = event["window_size"], event["data"]
        kind = data["type"]
        if kind == "created":
            self._window = max(self._window, window)
        elif window >= self._window:
            self._window = window
            if kind == "stored":
                said += self._stored(data)
            elif kind == "removed":
                said += self._removed(data["block_hashes"])
            elif kind == "updated" and (level := data["cache_level"]) is not None:  # else its priority was
                said += self._moved(_hash(data["block_hash"]), level["new_value"])
        return said

    def _stored(self, data: Mapping[str, Any]) -> list[KvEvent]:
        told: list[Mapping[str, Any]] = []
        tokens: list[int] = []
        for number, block in enumerate(data["blocks"]):
            ids = [token["token_id"] for token in block["tokens"]]
            # A partial block, or a picture's: what its keys count from is not said. Nor are those told of that follow.
            if block.get("mm_keys") or len(ids) < self._block_size:
                self._untold.update(_hash(left["block_hash"]) for left in data["blocks"][number:])
                break
            told.append(block)
            tokens += ids
        if not told:
            return []
        hashes = [_hash(block["block_hash"]) for block in told]
        parent = data["parent_hash"]
        keys = [key for key in (data.get("lora_name"), data.get("cache_salt")) if key]
        stored = BlockStored(
            hashes,
            None if parent is None else _hash(parent),
            tokens,
            self._block_size,
            lora_name=data.get("lora_name"),
            extra_keys=[keys, *([None] * (len(hashes) - 1))] if keys else None,
        )
        said: list[KvEvent] = [stored]
        for theirs, block in zip(hashes, told, strict=True):
            if before := self._levels.pop(theirs, 0):
                said.append(BlockRemoved([theirs], _MEDIA[before]))
            said += self._moved(theirs, block["cache_level"])
        return said

    def _moved(self, theirs: EngineHash, level: int) -> list[KvEvent]:
        """To that level, if it isn't there. Without tokens: it was told of before."""
        before = self._levels.pop(theirs, 0)
        if level:
            self._levels[theirs] = level
        if level == before or theirs in self._untold:
            return []
        stored = BlockStored([theirs], None, [], self._block_size, medium=_MEDIA[level])
        return [stored, BlockRemoved([theirs], _MEDIA[before])]

    def _removed(self, blocks: list[int | str]) -> list[KvEvent]:
        gone: dict[int, list[EngineHash]] = {}  # by level
        for theirs in map(_hash, blocks):
            level = self._levels.pop(theirs, 0)
            if theirs in self._untold:
                self._untold.remove(theirs)
            else:
                gone.setdefault(level, []).append(theirs)
        return [BlockRemoved(known, _MEDIA[level]) for level, known in gone.items()]


def _hash(theirs: int | str) -> EngineHash:
    """A number of 64 bits, or the digits of a longer one."""
    return bytes.fromhex(theirs) if isinstance(theirs, str) else theirs
