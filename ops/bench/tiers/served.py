"""Real vLLM with tiers: SmolLM2 on all cores, with room for two prompts in its own cache."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from app.cli.stack import cpu_shares, usable_cores
from ops.bench.load import System
from ops.bench.processes import Unavailable
from ops.bench.systems import fleet
from tests.stack import ROOT

MODEL = ROOT / ".xylem/models/SmolLM2-135M-Instruct"
BLOCK, TOKENS = 32, 992  # of a block, of a prompt
BLOCK_BYTES = 30 * 2 * 3 * 64 * 4 * BLOCK  # layers, keys and values, heads, head size, float32
_ROOM = 75  # blocks of the engine's own cache: two prompts and some streams


@contextmanager
def served(run_dir: Path, tiers: Mapping[str, Any]) -> Iterator[tuple[System, httpx.Client]]:
    """Raises: Unavailable."""
    if not (MODEL / "model.safetensors").exists():
        raise Unavailable(f"no model in {MODEL}: `make run` makes it")
    pool = {
        "model": "bench", "engine": "vllm", "path": str(MODEL), "block_size": BLOCK, "max_model_len": 2048,
        "max_running": 8, "args": {"kv_cache_memory_bytes": _ROOM * BLOCK_BYTES}, "tiers": dict(tiers),
    }  # fmt: skip
    cores = {"VLLM_CPU_OMP_THREADS_BIND": cpu_shares(usable_cores(), 1)[0]}
    with (
        fleet(run_dir, {"tiered": pool}, {"tiered": 1}, more_env=cores) as system,
        httpx.Client(base_url=system.url, timeout=300) as client,
    ):
        yield system, client
