"""Tiers: what the engine's own cache has evicted comes from host memory, and is answered alike."""

from random import Random

from ops.models.cell import Cell, right, untried, wrong
from ops.models.loaded import Model, answer, difference, loaded, request
from ops.models.plain import LONG


async def tiered(model: Model) -> Cell:
    others, random = list[list[int]](), Random(3)
    async with loaded(model, tiers={"host_gb": 0.2}) as it:
        first = await answer(it.engine, request(LONG))
        cache_tokens = it.info.total_blocks * it.info.block_size
        while sum(map(len, others)) < cache_tokens:
            others.append([random.randrange(10, 40_000) for _ in range(950)])
        for other in others:
            await answer(it.engine, request(other, 1))
        again = await answer(it.engine, request(LONG))
        if mismatch := difference(first, again, it.dtype):
            return wrong(mismatch)
        if not again[0].cached_tokens:
            return wrong("what was evicted did not come back")
        return right() if it.engine.stats().host_bytes_per_s else untried("nothing was evicted")
