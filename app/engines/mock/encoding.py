"""Vectors of the mock engine: each token has a random direction; a text's vector is their normalised sum.

So texts with common words have similar vectors, and a text has the same vector in every process.
"""

import asyncio
from array import array
from functools import lru_cache
from math import exp, hypot
from random import Random

from app.engines.base import EncodeRequest
from app.engines.checks import check_inputs
from app.engines.mock.args import MockArgs
from app.engines.mock.vocabulary import Vocabulary
from app.messages.kinds import Task
from app.pools.schema import Pool


class Encoding:
    """One data-parallel rank: encodes one request after the other, in the order of arrival."""

    def __init__(self, args: MockArgs, pool: Pool) -> None:
        self._step_s = args.step_ms / 1e3 / args.speedup
        self._token_s = 1 / args.prefill_tokens_per_s / args.speedup
        self._size = args.dimensions if pool.task == "embed" else len(pool.labels)
        self._pool, self._turn = pool, asyncio.Lock()
        self.requests = self.tokens = 0  # requests now; tokens computed since the start

    async def encode(self, request: EncodeRequest, vocabulary: Vocabulary) -> bytes:
        """The vectors of all inputs: float32. Raises: RequestError, PromptTooLong."""
        check_inputs(request, self._pool, vocabulary.size)
        self.requests += 1
        try:
            async with self._turn:
                return await self._vectors(request)
        finally:
            self.requests -= 1

    async def _vectors(self, request: EncodeRequest) -> bytes:
        tokens = sum(map(len, request.inputs))
        await asyncio.sleep(self._step_s + tokens * self._token_s)
        numbers = array("f")
        for one in request.inputs:
            numbers.extend(vector(one, request.dimensions or self._size, request.task))
            await asyncio.sleep(0)
        self.tokens += tokens
        return numbers.tobytes()


def vector(tokens: list[int], dimensions: int, task: Task = "embed") -> list[float]:
    """A vector of length 1; for the task `classify`, probabilities."""
    total = [sum(parts) for parts in zip(*(_direction(token, dimensions) for token in tokens), strict=True)]
    length = hypot(*total) or 1.0
    unit = [x / length for x in total]
    if task == "embed":
        return unit
    odds = [exp(x) for x in unit]
    return [x / sum(odds) for x in odds]


@lru_cache(4096)
def _direction(token: int, dimensions: int) -> tuple[float, ...]:
    random = Random(token)  # noqa: S311 (guards nothing)
    return tuple(random.gauss() for _ in range(dimensions))
