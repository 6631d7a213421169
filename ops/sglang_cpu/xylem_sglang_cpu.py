"""A plugin of SGLang's: five of its assumptions about GPUs, undone where there is none.

SGLang loads it in each of its processes. The adapter (`app/engines/sglang/`) knows nothing of it.
"""

import logging
import sys
from typing import Any

_CONN = "sglang.srt.disaggregation.nixl.conn"
_HOST_POOLS = "sglang.srt.mem_cache.pool_host"
_MAKERS = ("empty", "full", "ones", "tensor", "zeros")
_PROGRESS_EVERY_US = 1000  # the longest sleep of NIXL's progress thread; NIXL's Python sets 0


def register() -> None:
    import torch
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if torch.cuda.is_available():
        return
    # It warns of each model whose code can't be imported: here, of all that have kernels of their own.
    logging.getLogger("sglang.srt.models.registry").setLevel(logging.ERROR)
    # The KV lies in this host's memory, and NIXL is told so.
    HookRegistry.register(f"{_CONN}._normalize_kv_mem_kinds", _in_memory, HookType.REPLACE)
    HookRegistry.register(f"{_CONN}._unpack_kv_mem_kinds", _in_memory, HookType.REPLACE)
    # Else NIXL's progress thread takes a whole core, also when nothing is to be done.
    HookRegistry.register(f"{_CONN}.NixlKVManager.__init__", _let_nixl_sleep, HookType.BEFORE)
    # Its cache in host memory is copied by kernels, and registered with CUDA.
    for kind in ("MHA", "MLA"):
        host_pool = f"{_HOST_POOLS}.{kind.lower()}.{kind}TokenToKVPoolHost"
        HookRegistry.register(f"{host_pool}.__init__", _let_torch_copy, HookType.BEFORE)
    # Before it writes down a record of experts it frees memory of its GPU.
    if not hasattr(torch.cpu, "empty_cache"):
        torch.cpu.empty_cache = lambda: None
    unpin()


def unpin() -> None:
    """Lets nothing pin memory: that is for copies to a GPU."""
    import torch

    torch.Tensor.pin_memory = lambda tensor, *_args, **_kwargs: tensor
    for name in _MAKERS:
        make = _unpinned(getattr(torch, name))
        setattr(torch, name, make)
        # Else TorchScript compiles ours, and can't: modules of Transformers that have it, such as DeBERTa's, don't
        # import then, and with them what SGLang has for LLaVA and Mistral 3.
        torch.jit._builtins._register_builtin(make, f"aten::{name}")  # noqa: SLF001 (nothing else takes one)


def _in_memory(_kinds: object, expected_len: int) -> list[str]:
    return ["DRAM"] * expected_len


def _unpinned(make: Any) -> Any:
    def unpinned(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:  # noqa: ARG001 (torch's interface)
        return make(*args, **kwargs)

    return unpinned


def _let_torch_copy(*_args: Any, **_kwargs: Any) -> None:
    from sglang.srt.mem_cache.pool_host import base, common, mha, mla

    base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 2**30  # its 10 GiB leave small machines nothing
    common.ALLOC_MEMORY_FUNCS["cpu"] = common.alloc_with_pin_memory
    mha.transfer_kv_direct = mla.transfer_kv_direct = _copy_rows


def _copy_rows(*, src_layers: Any, dst_layers: Any, src_indices: Any, dst_indices: Any, page_size: int) -> None:  # noqa: ARG001 (the kernel's interface)
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices]


def _let_nixl_sleep(*_args: Any, **_kwargs: Any) -> None:
    from nixl._api import nixl_agent

    bindings = sys.modules[nixl_agent.__module__].nixlBind  # the package of this CUDA version
    bindings.nixlAgent = _sleepy(bindings.nixlAgent)


def _sleepy(make: Any) -> Any:
    def agent(name: str, config: Any) -> Any:
        config.pthrDelay = _PROGRESS_EVERY_US
        return make(name, config)

    return agent
