"""A model with experts on real engines: in one process and over two, what is refused, and the record of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.engines.base import ExpertRecorder
from app.errors import SettingsError
from app.runner.engine_factory import create_engine
from app.tokenizing.tokenizer import load_tokenizer
from tests.contract.conftest import make_pool
from tests.contract.subject import Subject
from tests.forkserver import forks_of
from tests.shallow import LAYERS
from tests.tiny import EXPERTS, tiny_experts

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning", "ignore::UserWarning"
    ),
]

STORY = "The lighthouse keeper opened the old door, looked over the grey sea and went down again to the boat."
ARGS: dict[str, dict[str, Any]] = {"vllm": {"kv_cache_memory_bytes": 2**27}, "sglang": {"max_total_tokens": 4096}}
SPREAD = {"vllm": {"enable_expert_parallel": True}, "sglang": {"ep_size": 2}}  # whole experts


@asynccontextmanager
async def started(engine: str, args: dict[str, Any], **settings: Any) -> AsyncIterator[Subject]:
    pool = make_pool(engine, path=tiny_experts(), args=ARGS[engine] | args, **settings)
    with forks_of(engine):
        new_engine = create_engine(pool)
        try:
            yield Subject(engine, new_engine, await new_engine.start(), load_tokenizer(pool.model_dir), set(), 6.0)
        finally:
            await new_engine.close()


async def tokens(subject: Subject) -> list[int]:
    return (await subject.answer(STORY, max_tokens=12, ignore_eos=True)).tokens


@pytest.mark.parametrize("engine", ARGS)
async def test_two_processes_with_a_part_of_each_expert_answer_as_one_does(engine: str) -> None:
    async with started(engine, {}) as subject:
        expected_tokens = await tokens(subject)
    async with started(engine, {}, tensor_parallel_size=2) as subject:
        assert await tokens(subject) == expected_tokens


@pytest.mark.parametrize("engine", ARGS)
async def test_a_part_of_the_experts_in_each_process_is_refused_on_a_cpu(engine: str) -> None:
    """Either engine would load, and end at the first request."""
    with pytest.raises(SettingsError, match=next(iter(SPREAD[engine]))):
        async with started(engine, SPREAD[engine], tensor_parallel_size=2):
            pass


async def test_vllm_balances_experts_on_gpus_only() -> None:
    """The reason is its own."""
    with pytest.raises(SettingsError, match="balancing is only supported on CUDA devices"):
        async with started("vllm", SPREAD["vllm"] | {"enable_eplb": True}, tensor_parallel_size=2):
            pass


async def test_an_sglang_writes_down_how_many_tokens_each_expert_had(tmp_path: Path) -> None:
    """Each token that was computed meanwhile has two in each layer."""
    import torch

    args = {
        "expert_distribution_recorder_mode": "stat",
        "env": {"SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR": str(tmp_path)},
    }
    async with started("sglang", args) as subject:
        assert isinstance(subject.engine, ExpertRecorder)
        await subject.engine.record_experts("start")
        await tokens(subject)
        await subject.engine.record_experts("dump")
        await subject.engine.record_experts("stop")
        (file,) = await asyncio.to_thread(lambda: list(tmp_path.glob("*.pt")))
        counts = torch.load(file, weights_only=True)["logical_count"].sum(dim=0)
        assert counts.shape == (LAYERS, EXPERTS)
        assert counts.sum(dim=1).tolist() == [2 * (len(subject.encode(STORY)) + 11)] * LAYERS
