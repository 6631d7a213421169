"""Pipeline parallelism of real engines on a CPU: two processes, each with half of the layers."""

import gc
from typing import Any

import pytest

from app.kv.blocks import prompt_hashes
from app.runner.engine_factory import create_engine
from app.tokenizing.tokenizer import load_tokenizer
from tests.contract.conftest import make_pool
from tests.contract.subject import Subject
from tests.forkserver import forks_of
from tests.tiny import tiny_model

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning", "ignore::UserWarning"
    ),
]
STORY = "The lighthouse keeper opened the old door, looked over the grey sea and went down again to the boat. " * 3


@pytest.mark.parametrize(
    ("engine", "stages", "args"),
    [
        ("vllm", "pipeline_parallel_size", {"kv_cache_memory_bytes": 2**26}),
        ("sglang", "pp_size", {"max_total_tokens": 2048}),
    ],
)
async def test_two_stages_answer_as_one_does_and_find_a_prompt_again(
    engine: str, stages: str, args: dict[str, Any]
) -> None:
    assert await answer(engine, args) == await answer(engine, args | {stages: 2})


async def answer(name: str, args: dict[str, Any]) -> list[int]:
    """Its tokens. Asked twice: the second time most of the prompt is cached."""
    pool = make_pool(name, path=tiny_model(), args=args)
    engine = create_engine(pool)
    with forks_of(name):
        info = await engine.start()
        try:
            subject = Subject(name, engine, info, load_tokenizer(pool.model_dir), set(), 6.0)
            prompt, answers, sizes = subject.encode(STORY), [], []
            for _ in range(2):
                outputs = [output async for output in engine.generate(subject.request(STORY, ignore_eos=True))]
                answers.append([token for output in outputs for token in output.tokens])
                sizes.append(outputs[0].cached_tokens)
            first = prompt_hashes(prompt, info.block_size)[:8]
            await subject.ledger_becomes(lambda blocks: first in blocks)
        finally:
            await engine.close()
    del engine
    gc.collect()
    assert answers[0] == answers[1]
    assert sizes == [0, (len(prompt) - 1) // info.block_size * info.block_size]
    return answers[0]
