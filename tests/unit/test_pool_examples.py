"""The examples of pools files."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.engines.trtllm.args import engine_args as trtllms
from app.model_store.source import RemoteModel
from app.pools.pools_file import load_pools
from app.pools.schema import Pool

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "ops" / "pools").glob("*.yaml"))
POOLS = {f"{file.stem}-{name}": pool for file in EXAMPLES for name, pool in load_pools(file).pools.items()}


def fields_of(contract: str, class_: str) -> dict[str, Any]:
    entry = json.loads((ROOT / "tests" / "contract" / "apis" / contract).read_text())["classes"][class_]
    return dict(entry["fields"])


def test_there_is_one_for_each_engine_and_mode() -> None:
    pools = POOLS.values()
    engines = ("mock", "vllm", "sglang", "trtllm")
    assert {(pool.engine, pool.role) for pool in pools} >= {
        (engine, role) for engine in engines for role in ("both", "prefill", "decode")
    }
    assert {(pool.engine, pool.task) for pool in pools} >= {
        ("mock", "embed"), ("vllm", "embed"), ("vllm", "classify"), ("sglang", "embed"),
        ("mock", "image"), ("diffusers", "image"),
    }  # fmt: skip
    assert {pool.engine for pool in pools if pool.data_parallel_size > 1} >= {"vllm", "sglang", "trtllm"}
    assert any(isinstance(pool.path, RemoteModel) for pool in pools)
    assert any(pool.args.get("backend") == "autodeploy" for pool in pools)
    assert any(load_pools(file).aliases for file in EXAMPLES)
    assert any(load_pools(file).pipelines for file in EXAMPLES)


@pytest.mark.parametrize("pool", [pool for pool in POOLS.values() if pool.engine == "sglang"])
def test_the_arguments_of_an_sglang_are_its_own(pool: Pool) -> None:
    """vLLM's are checked where vLLM is imported: tests/contract/test_vllm_process.py."""
    assert pool.args.keys() <= fields_of("sglang-0.5.23.json", "ServerArgs").keys()


@pytest.mark.parametrize("pool", [pool for pool in POOLS.values() if pool.engine == "trtllm"])
def test_the_arguments_of_a_trtllm_are_its_own(pool: Pool) -> None:
    bounded_pool = pool.model_copy(update={"max_model_len": 1024})
    assert trtllms(bounded_pool).fields.keys() <= fields_of("tensorrt_llm.json", "TorchLlmArgs").keys()
