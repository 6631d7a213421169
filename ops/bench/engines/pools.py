"""The engines under test: entries of the pools file, and the same arguments for the engines' own servers."""

from pathlib import Path
from typing import Any

from app.cli.stack import cpu_shares, usable_cores
from ops.bench.processes import Unavailable
from ops.bench.size import Size
from tests.shallow import shallow_model

MODEL = "bench"
_SHAPE = {"block_size": 32, "max_model_len": 2048}
_SEATS = 64
# What SGLang needs on a CPU. Our adapter would take most of it by itself; its own server has to be told.
_SGLANG = {
    "device": "cpu", "dtype": "float32", "attention_backend": "torch_native", "sampling_backend": "pytorch",
    "disable_cuda_graph": True, "disable_overlap_schedule": True, "sleep_on_idle": True, "max_total_tokens": 23_000,
    "mem_fraction_static": 0.3, "grammar_backend": "xgrammar", "log_level": "error",
}  # fmt: skip
_VLLM = {"dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 2**30}
# A thread for each engine where several are up, and no core of its own for any.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "TORCH_COMPILE_DISABLE": "1"}
SHARED_CORES = ONE_THREAD | {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def own_cores() -> dict[str, str]:
    """The environment for vLLM where one engine computes at a time, as `xylem up` starts it."""
    return {"VLLM_CPU_OMP_THREADS_BIND": cpu_shares(usable_cores(), 1)[0], "TORCH_COMPILE_DISABLE": "1"}


def model_dir(size: Size = Size.FULL) -> Path:
    """Its first layers only in shorter runs, for what is no matter of speed. Raises: Unavailable."""
    path = Path(".xylem/models/SmolLM2-135M-Instruct").resolve()
    if not (path / "model.safetensors").exists():
        raise Unavailable(f"no model in {path}: `make run` makes it")
    return path if size is Size.FULL else shallow_model(path)


def sglang_pool(path: Path) -> dict[str, Any]:
    return _pool("sglang", path, _SGLANG)


def sglang_arguments() -> dict[str, Any]:
    """Arguments of SGLang's own server, as the pool's."""
    shape = {"page_size": 32, "context_length": 2048, "max_running_requests": _SEATS, "skip_server_warmup": True}
    return _SGLANG | shape


def vllm_pool(path: Path, **more: Any) -> dict[str, Any]:
    """`more`: further engine arguments."""
    return _pool("vllm", path, _VLLM | more)


def vllm_arguments(**more: Any) -> dict[str, Any]:
    """Arguments of vLLM's own server, as the pool's."""
    return {**_VLLM, **_SHAPE, "max_num_seqs": _SEATS, **more}


def _pool(engine: str, path: Path, args: dict[str, Any]) -> dict[str, Any]:
    return {"model": MODEL, "engine": engine, "path": str(path), "max_running": _SEATS, **_SHAPE, "args": args}
