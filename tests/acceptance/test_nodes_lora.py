"""LoRA adapters on a vLLM and on an SGLang over two hosts, each of which fetches their files to a disk of its own.

`make nodes`, as root: each host is a network namespace, and loading takes minutes.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.lora import make_adapter
from tests.nodes import LOADS_S, SMALL, STORY, Hosts, answer, pools_on_hosts
from tests.stack import leases, wait_until
from tests.tiny import WIDTHS, tiny_model

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(1800)]

OVER, ALONE = "decode-pool-o", "decode-pool-s"
LORA = {"enable_lora": True, "max_lora_rank": 8}
VLLM = {
    "engine": "vllm", "block_size": 32,
    "args": {"kv_cache_memory_bytes": 2**27, "max_loras": 1, "max_cpu_loras": 2} | LORA,
}  # fmt: skip
SGLANG = {
    "engine": "sglang", "block_size": 16,
    "args": {"max_total_tokens": 4096, "max_loras_per_batch": 2, "max_loaded_loras": 2} | LORA,
}  # fmt: skip
TENSORS, RANKS = {"tensor_parallel_size": 2}, {"data_parallel_size": 2}
SHAPES = {"vllm-tensors": (VLLM, TENSORS), "vllm-ranks": (VLLM, RANKS), "sglang-tensors": (SGLANG, TENSORS)}
PROMPTS = [f"Story number {number}: {STORY}" for number in range(4)]


@pytest.mark.parametrize("shape", SHAPES)
def test_an_adapter_answers_on_two_hosts_as_on_one(shape: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The model itself does too, as before and afterwards."""
    engine, parts = SHAPES[shape]
    path = tmp_path_factory.mktemp(shape)
    alone = SMALL | engine | {"path": str(tiny_model()), "model": ALONE}
    pools = {OVER: alone | {"model": OVER, "nodes": 2} | parts, ALONE: alone}
    env = {"XYLEM_LORA_SOURCES": str(path), "XYLEM_LORA_STORE": "/dev/shm/loras"}  # each host has its own /dev/shm
    with pools_on_hosts(path, pools, 3, **env) as hosts:
        wait_until(lambda: all(leases(hosts.stack, pool) for pool in pools), "both lead", LOADS_S, every_s=0.1)
        for model in pools:
            hosts.stack.wait_ready(model=model)
        plain = answers(hosts, OVER)
        assert plain == answers(hosts, ALONE)
        for seed, adapter in enumerate(("one", "two")):
            source = make_adapter(path / adapter, seed, widths=WIDTHS)
            texts = [added(hosts, f"{adapter}-{model}", model, source) for model in pools]
            assert texts[0] == texts[1] != plain
        assert answers(hosts, OVER) == plain


def added(hosts: Hosts, name: str, model: str, source: Path) -> list[str]:
    body: dict[str, Any] = {"name": name, "model": model, "source": str(source)}
    reply = httpx.post(f"{hosts.stack.url}/admin/loras", json=body, timeout=300)
    assert reply.status_code == 200, reply.text
    assert reply.json()["workers"], reply.text
    return answers(hosts, name)


def answers(hosts: Hosts, model: str) -> list[str]:
    """Texts for all prompts at once, so that each data-parallel rank has some."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda prompt: answer(hosts, 12, prompt, model=model), PROMPTS))
