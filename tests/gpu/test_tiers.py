"""Host memory behind the engines' caches, by the engines' own means, which need CUDA."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.kv.blocks import chain, root
from app.runner.engine_factory import create_engine
from app.tokenizing.tokenizer import load_tokenizer
from tests.contract.conftest import make_pool, model_dir
from tests.contract.subject import Subject
from tests.gpu.place import installed

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
]

TOKENS = 384  # of a prompt
ROOM = 1024  # tokens of the engine's own cache: two prompts, and not a third
ARGS: dict[str, dict[str, Any]] = {
    "vllm": {"num_gpu_blocks_override": ROOM // 32 + 1, "enforce_eager": True},
    "sglang": {"max_total_tokens": ROOM},
    "trtllm": {"kv_cache_config": {"max_tokens": ROOM}},
}


@pytest.mark.parametrize("name", installed(*ARGS))
async def test_an_evicted_prompt_is_in_the_hosts_part_of_the_index_and_comes_from_there(name: str) -> None:
    pool = make_pool(name, path=Path(model_dir()), args=ARGS[name], tiers={"host_gb": 4})
    engine = create_engine(pool)
    info = await engine.start()
    subject = Subject(name, engine, info, load_tokenizer(pool.model_dir), set(), 6.0)
    prompt, *others = ([*range(first, first + TOKENS)] for first in (1000, 2000, 3000, 4000, 5000))
    blocks = set(chain(root(), prompt, info.block_size))
    try:
        assert info.tier_block_bytes > 0
        assert (await subject.answer(prompt)).cached_tokens == 0
        for other in others:
            await subject.answer(other)
        cached_blocks, in_host = blocks, set[bytes]()
        async with asyncio.timeout(30):
            while blocks & cached_blocks or not blocks <= in_host:
                await asyncio.sleep(0.1)
                ledger = await subject.replayed()
                cached_blocks, in_host = set(ledger.blocks()), set(ledger.host.blocks())
        assert (await subject.answer(prompt)).cached_tokens >= TOKENS - info.block_size
    finally:
        await engine.close()
