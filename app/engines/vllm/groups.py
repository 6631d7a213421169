"""The groups of a loaded vLLM's KV blocks."""

from collections.abc import Mapping
from typing import Any, Literal

from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.kv_cache_interface import KVCacheSpecKind

from app.messages.lease import CacheGroup

SEES: dict[str, Literal["all", "window", "chunk", "state"]] = {
    KVCacheSpecKind.FULL_ATTENTION: "all",
    KVCacheSpecKind.MLA_ATTENTION: "all",
    KVCacheSpecKind.SINK_FULL_ATTENTION: "all",
    KVCacheSpecKind.SLIDING_WINDOW: "window",
    KVCacheSpecKind.SLIDING_WINDOW_MLA: "window",
    KVCacheSpecKind.CHUNKED_LOCAL_ATTENTION: "chunk",
    KVCacheSpecKind.MAMBA: "state",
}


async def cache_groups(engine: AsyncLLM) -> tuple[tuple[CacheGroup, ...], str]:
    """None for a model whose layers all see all tokens, in blocks of the configured size. And why they aren't known."""
    config = engine.vllm_config
    if not config.cache_config.enable_prefix_caching:
        return (), ""
    entries = await engine.engine_core.call_utility_async("get_kv_cache_group_metadata")
    strange = [one["kind"] for one in entries if one["kind"] not in SEES]
    if strange:
        return (), f"its KV blocks are of a kind that is not known here: {strange[0]}"
    chunk, retention = (
        config.model_config.attention_chunk_size or 0,
        config.cache_config.prefix_cache_retention_interval,
    )
    groups = tuple(_group(one, chunk, retention) for one in entries)
    plain = [CacheGroup(0, "all", config.cache_config.block_size)]
    return (() if [*groups] == plain else groups), ""


def _group(message: Mapping[str, Any], chunk: int, retention: int | None) -> CacheGroup:
    """`chunk`: tokens, which neither events nor metadata have. `retention`: as vLLM's configuration has it."""
    sees = SEES[message["kind"]]
    width = {"window": message["sliding_window"], "chunk": chunk}.get(sees, 0)
    every = 0 if sees != "window" else message["block_size"] if retention is None else retention
    return CacheGroup(message["group_idx"], sees, message["block_size"], width, every)
