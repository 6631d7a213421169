"""Real SGLang's hierarchical cache in a real Redis: what its own cache has evicted lies in host memory, and is loaded.

On a CPU torch copies what kernels copy on a GPU (`ops/sglang_cpu`).
"""

import pytest
from redis.asyncio import Redis

from app.engines.base import PrefixResetter
from app.runner.engine_factory import create_engine
from app.store import Wire
from tests.contract.conftest import make_pool
from tests.forkserver import forks_of
from tests.integration.test_vllm_tier_index import Index, counted, indexed
from tests.integration.test_vllm_tiers import BLOCK, BLOCKS, TOKENS, Answer, Asker

pytestmark = [
    pytest.mark.tiers,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning", "ignore::UserWarning"
    ),
]

ROOM = 1024  # tokens of the engine's own cache: two prompts, and not a third


async def test_an_evicted_prompt_is_in_the_hosts_part_of_the_index_and_comes_from_there(
    redis: "Redis", wire: Wire
) -> None:
    """Its answer is the one that it had; a reset empties both parts."""
    pool = make_pool("sglang", args={"max_total_tokens": ROOM}, tiers={"host_gb": 0.5})
    with forks_of("sglang"):
        engine = create_engine(pool)
        info = await engine.start()
        asker = Asker(pool, engine, info)
        try:
            async with indexed(redis, wire, asker) as index:
                await _follows(asker, index)
                assert await counted(redis, index.kv.hosts[0]) >= 3 * BLOCKS
                assert isinstance(engine, PrefixResetter)
                assert await engine.reset_prefix_cache()
                await index.becomes(1, cached=False, in_host=False)
                assert await counted(redis, index.kv.hosts[0]) == 0
                assert (await asker.ask(1)).cached == 0
        finally:
            await engine.close()


async def _follows(asker: Asker, index: Index) -> None:
    assert asker.info.tier_block_bytes > 0
    first_answer = await asker.ask(1)
    await index.becomes(1, cached=True, in_host=True)
    for _ in range(2):
        await asker.evict()
        await index.becomes(1, cached=False, in_host=True)
        # It computes the last token, with the block that it is in.
        assert await asker.ask(1) == Answer(first_answer.tokens, TOKENS - BLOCK)
        await index.becomes(1, cached=True, in_host=True)
