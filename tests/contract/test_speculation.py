"""vLLM with speculation, on a CPU: greedy answers as without it, and no others."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from app.engines import create_engine
from app.errors import RequestError, SettingsError
from app.tokenizer import load_tokenizer
from tests.contract.conftest import make_pool
from tests.contract.subject import Subject

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
]
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 2}
PROMPT = "one two three four five six seven, " * 8


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def drafting() -> AsyncIterator[Subject]:
    pool = make_pool("vllm", args={"kv_cache_memory_bytes": 2**29, "speculative_config": NGRAM})
    engine = create_engine(pool)
    info = await engine.start()
    yield Subject("vllm", engine, info, load_tokenizer(pool.model_dir), set(), 6.0)
    await engine.close()


async def test_what_is_accepted_is_counted_by_position(drafting: Subject) -> None:
    answer = await drafting.answer(PROMPT, max_tokens=60, ignore_eos=True)
    assert len(answer.tokens) == 60
    stats = drafting.engine.stats()
    assert stats.drafts
    assert len(stats.accepted_tokens) == 3
    assert stats.drafted_tokens >= sum(stats.accepted_tokens) > 0
    assert list(stats.accepted_tokens) == sorted(stats.accepted_tokens, reverse=True)


@pytest.mark.parametrize("sampled", [{"temperature": 0.7}, {"temperature": 1.0, "top_k": 5}])
async def test_sampled_answers_are_refused(drafting: Subject, sampled: dict[str, float]) -> None:
    """vLLM's would be wrong, and `top_k` would end it."""
    with pytest.raises(RequestError, match="speculates on a CPU"):
        await drafting.answer(PROMPT, **sampled)
    assert (await drafting.answer(PROMPT, top_k=5)).finish == "length"


async def test_with_kv_transfer_it_is_refused_at_the_start() -> None:
    with pytest.raises(SettingsError, match="speculative_config"):
        create_engine(make_pool("vllm", role="decode", args={"speculative_config": NGRAM}))
