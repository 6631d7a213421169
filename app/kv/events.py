"""An engine's KV events as vLLM's ZmqEventPublisher and SGLang send them, decoded once.

Frames: topic, sequence number (8 bytes, big endian, from 0), msgpack batch `[ts, events, rank]`. An event is a map
with its name under `type`; fields that are not here are skipped.
"""

from typing import Annotated, Any

from msgspec import Meta, Struct

from app.messages.wire import decoder

EngineHash = int | bytes
TokenId = Annotated[int, Meta(ge=0, le=2**63 - 1)]  # of text: 32 bits, as our hashes have; of SGLang's pictures: more


class BlockStored(Struct, frozen=True, tag=True):
    block_hashes: list[EngineHash]
    parent_block_hash: EngineHash | None
    token_ids: list[TokenId]
    block_size: int
    medium: str | None = None
    lora_name: str | None = None
    # For each block, what its hash covers besides tokens: LoRA name, cache_salt, pictures and sound as [id, offset from
    # the block's start]. What else an engine may have is for the ledger to refuse.
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    cache_salt: str | None = None  # SGLang's, which has no extra_keys: LoRA name and salt are fields
    locality: str | None = None  # of a tier: LOCAL or REMOTE, as seen from the engine


class BlockRemoved(Struct, frozen=True, tag=True):
    block_hashes: list[EngineHash]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None


class AllBlocksCleared(Struct, frozen=True, tag=True):
    pass


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


class KvBatch(Struct, frozen=True, array_like=True):
    ts: float  # seconds since the epoch
    events: list[KvEvent]


decode_batch = decoder(KvBatch)
