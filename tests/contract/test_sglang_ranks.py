"""Two data-parallel ranks of a real SGLang: each has a cache of its own, and the end of one is the end of both."""

import gc
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from msgspec.structs import replace

from app.engines.base import GenerateRequest
from app.errors import EngineDead
from app.kv.blocks import prompt_hashes
from app.runner.engine_factory import create_engine
from app.tokenizing.tokenizer import load_tokenizer
from tests.contract.conftest import make_pool
from tests.contract.subject import Subject
from tests.forkserver import forks_of

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning", "ignore::UserWarning"
    ),
]
STORY = "The lighthouse keeper opened the old door, looked over the grey sea and went down again to the boat. " * 3


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def ranks() -> AsyncIterator[Subject]:
    pool = make_pool("sglang", data_parallel_size=2, args={"max_total_tokens": 2048})
    engine = create_engine(pool)
    with forks_of("sglang"):
        info = await engine.start()
        yield Subject("sglang", engine, info, load_tokenizer(pool.model_dir), set(), 6.0)
        await engine.close()
    del engine
    gc.collect()


async def answered(subject: Subject, rank: int) -> tuple[list[int], int]:
    """Its tokens, and how many of the prompt were cached."""
    request: GenerateRequest = replace(subject.request(STORY, ignore_eos=True), rank=rank)
    outputs = [output async for output in subject.engine.generate(request)]
    return [token for output in outputs for token in output.tokens], outputs[0].cached_tokens


async def test_each_rank_has_a_cache_of_its_own_tells_of_it_and_clears_it(ranks: Subject) -> None:
    size = ranks.info.block_size
    assert ranks.info.ranks == len(ranks.engine.kv_events()) == 2
    prompt = ranks.encode(STORY)
    first = prompt_hashes(prompt, size)[:8]
    tokens, cached_tokens = await answered(ranks, 0)
    assert cached_tokens == 0
    assert await answered(ranks, 0) == (tokens, (len(prompt) - 1) // size * size)
    await ranks.ledger_becomes(lambda blocks: first in blocks)
    await ranks.ledger_becomes(lambda blocks: not blocks, rank=1)
    assert await answered(ranks, 1) == (tokens, 0)
    await ranks.ledger_becomes(lambda blocks: first in blocks, rank=1)
    await ranks.clear()
    for rank in (0, 1):
        await ranks.ledger_becomes(lambda blocks: not blocks, rank)


async def test_the_death_of_one_rank_ends_the_requests_of_the_other(ranks: Subject) -> None:
    """Half an engine would answer half of the requests, and nobody the others."""
    streams = []
    for rank in (0, 1):
        request = replace(ranks.request(STORY, max_tokens=300, ignore_eos=True), rank=rank)
        streams.append(ranks.engine.generate(request))
        await anext(streams[-1])
    _controller, _first, second, _detokenizer = ranks.engine._processes.found  # type: ignore[attr-defined]
    second.kill()
    for stream in streams:
        with pytest.raises(EngineDead):
            async for _ in stream:
                pass
    with pytest.raises(EngineDead):
        await answered(ranks, 0)
