"""The groups of a loaded SGLang's KV blocks."""

from typing import Any

from sglang.srt.mem_cache.kv_cache_builder import uses_ssm_state
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from app.engines.sglang_cache_groups import GROUPS
from app.messages.lease import CacheGroup


def cache_groups(engine: Any, block_size: int) -> tuple[tuple[CacheGroup, ...], str]:
    """None for a model whose layers all see all tokens. And why they aren't known."""
    manager = engine.tokenizer_manager
    model, args = manager.model_config, manager.server_args
    if args.disable_radix_cache:
        return (), ""
    if SpeculativeAlgorithm.from_string(args.speculative_algorithm).is_eagle():
        return (), "with a draft model, SGLang hashes pairs of tokens"
    entries = engine._scheduler_init_result.scheduler_infos[0].get(GROUPS, ())  # noqa: SLF001 (nothing public has it)
    if len(entries) > 1 and block_size == 1:
        return (), "a prompt may resume behind any token: with a larger block_size each point can be looked up"
    if len(entries) > 1:
        return tuple(CacheGroup(number, sees, block_size, width) for number, sees, width in entries), ""
    if model.is_hybrid_swa or uses_ssm_state(model):
        return (), "this SGLang doesn't tell which windows and states it keeps"
    return (), ""
