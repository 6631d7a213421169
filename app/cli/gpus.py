"""NVIDIA GPUs of this machine, and which of them each worker under `xylem up` gets."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from itertools import accumulate
from shutil import which

from app.ids import PoolId
from app.pools.schema import Pool

_ON_GPUS = ("vllm", "sglang", "trtllm", "diffusers")
_TENSOR = ("tensor_parallel_size", "tp_size")  # as engines' arguments
_STAGES = ("pipeline_parallel_size", "pp_size")
_ANSWER_S = 20


def usable_gpus() -> list[str]:
    """Their names in CUDA_VISIBLE_DEVICES, or those that it leaves; empty if no driver answers."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    if which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return answer.stdout.split()


def devices(pool: Pool) -> int:
    """The GPUs that one worker of the pool computes on; 0: none."""
    if pool.engine not in _ON_GPUS:
        return 0
    within = pool.tensor_parallel_size or _argument(pool, _TENSOR)
    return pool.data_parallel_size * within * _argument(pool, _STAGES) // pool.nodes


def worker_counts(pools: Mapping[PoolId, Pool], workers: int | None, gpus: Sequence[str]) -> dict[PoolId, int]:
    """`workers`: of each pool; None: as many as its GPUs are enough for, and at least one."""
    if workers is not None:
        return dict.fromkeys(pools, workers)
    return {name: max(1, len(gpus) // devices(pool)) if devices(pool) else 1 for name, pool in pools.items()}


def gpu_shares(gpus: Sequence[str], sizes: Sequence[int]) -> list[str | None]:
    """GPUs of its own for each worker, as CUDA_VISIBLE_DEVICES. None: as this process has it.

    That is so for those that need none, and for all where there are too few: then they share them.
    """
    if sum(sizes) > len(gpus):
        return [None] * len(sizes)
    ends = list(accumulate(sizes))
    return [",".join(gpus[end - size : end]) if size else None for end, size in zip(ends, sizes, strict=True)]


def _argument(pool: Pool, names: Sequence[str]) -> int:
    sizes = (pool.args.get(spelling) for name in names for spelling in (name, name.replace("_", "-")))
    return next((size for size in sizes if isinstance(size, int)), 1)
