"""TensorRT-LLM's KV events, which are asked for, as those that vLLM publishes. Pure."""

from collections.abc import Mapping
from typing import Any

from app.engines.kv_publisher import AllBlocksCleared, BlockRemoved, BlockStored, EngineHash, KvEvent


class RankEvents:
    """Of one attention-DP rank, in the order of its events."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._last: int | None = None  # number of the event before
        self._window = 0  # the largest: other layers look back less far, and keep blocks of their own
        self._partial: set[EngineHash] = set()  # blocks that aren't full, which nobody is told of

    def read(self, event: Mapping[str, Any]) -> list[KvEvent]:
        """What the event says. After a gap what was known counts for nothing. Raises: KeyError, ValueError."""
        number = event["event_id"]
        said: list[KvEvent] = []
        if self._last is not None and number != self._last + 1:
            self._partial.clear()
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
        # `updated` moves a block between GPU and host: it is found there too.
        return said

    def _stored(self, data: Mapping[str, Any]) -> list[KvEvent]:
        hashes: list[EngineHash] = []
        tokens: list[int] = []
        for block in data["blocks"]:
            ids = [token["token_id"] for token in block["tokens"]]
            if block.get("mm_keys"):
                break  # a picture's: what its keys count from is not said, so nobody is told of it
            if len(ids) < self._block_size:
                self._partial.add(_hash(block["block_hash"]))
                break
            hashes.append(_hash(block["block_hash"]))
            tokens += ids
        if not hashes:
            return []
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
        return [stored]

    def _removed(self, blocks: list[int | str]) -> list[KvEvent]:
        gone = [_hash(block) for block in blocks]
        known = [block for block in gone if block not in self._partial]
        self._partial.difference_update(gone)
        return [BlockRemoved(known)] if known else []


def _hash(theirs: int | str) -> EngineHash:
    """A number of 64 bits, or the digits of a longer one."""
    return bytes.fromhex(theirs) if isinstance(theirs, str) else theirs
