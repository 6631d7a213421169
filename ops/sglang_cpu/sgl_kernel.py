"""Stands in for sglang-kernel, which has CUDA libraries only.

These are the names that SGLang 0.5.23 takes on a CPU. None of them is called where a model's own layers are computed
by torch; what does call one (speculation) is told that it needs the real package.
"""

from typing import Any, NoReturn

import torch


def _missing(name: str) -> Any:
    def missing(*_args: object, **_kwargs: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name}: there are no kernels for this CPU")

    return missing


assign_draft_cache_locs_contiguous_cpu = _missing("assign_draft_cache_locs_contiguous_cpu")
assign_extend_cache_locs_cpu = _missing("assign_extend_cache_locs_cpu")
assign_req_to_token_pool_cpu = _missing("assign_req_to_token_pool_cpu")
build_tree_kernel_efficient_cpu = _missing("build_tree_kernel_efficient_cpu")
copy_all_layer_kv_cache_cpu = _missing("copy_all_layer_kv_cache_cpu")
fill_accept_out_cache_loc_cpu = _missing("fill_accept_out_cache_loc_cpu")
fill_bonus_tokens_cpu = _missing("fill_bonus_tokens_cpu")
rotate_input_ids_cpu = _missing("rotate_input_ids_cpu")
verify_tree_greedy_cpu = _missing("verify_tree_greedy_cpu")

# Taken by the models of Qwen3.5, which are imported for whatever sees as Qwen-VL does.
for _name in (
    "fused_qk_gemma_rmsnorm_cpu",
    "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
    "fused_sigmoid_mul_cpu",
):
    setattr(torch.ops.sgl_kernel, _name, _missing(_name))
