"""An answer so far and its token counts: the base of an answer made here and of a kept one read from Redis."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from app.dispatch.generation_plan import GenerationPlan
from app.ids import RequestId
from app.messages.events import Delta, Progress

T = TypeVar("T")
Parts = TypeVar("Parts", list[tuple[int, Delta]], Mapping[str, Any])

_SHORT = 512  # tokens; a longer answer's body is made in a thread: with logprobs it takes long


class GenerationBase:
    def __init__(self, request: RequestId, came: float, plan: GenerationPlan) -> None:
        """`came`: when the request arrived, seconds since the epoch."""
        self.id, self.created = request, int(came)
        self.plan, self.model, self.prompts = plan, plan.model, plan.prompts
        self.choices = len(plan.prompts) * plan.sampling[0].n
        self.prompt_tokens = sum(map(len, plan.prompts))
        self.cached_tokens = 0
        self.completion_tokens = 0  # of its answers
        self.unshown = 0  # tokens of beams that are in none of them
        self.vectors: dict[int, bytes] = {}  # of prompts that are inputs, by number: see `messages.Vectors`
        self.pictures: dict[int, bytearray] = {}  # files of those that are painted, by number, as far as they are here
        self.weights: list[str] = []  # the versions that made it, in order
        self.before = (0, 0, 0)  # tokens of a pipeline's earlier stages: of prompts, of these cached, of answers
        self.skip = 0  # leading deltas that the client has already

    async def deltas(self) -> list[tuple[int, Delta]]:
        """New deltas with their choice's number, not counted yet; an empty list when all prompts are done.

        Raises: the error that ended a prompt; Cancelled when the client has disconnected.
        """
        raise NotImplementedError

    async def progress(self) -> list[tuple[int, Progress]]:
        """New steps of a request that paints, with their picture's number; an empty list when all is painted.

        Raises what `deltas` raises.
        """
        raise NotImplementedError

    async def whole(self) -> list[tuple[int, Delta]]:
        """All deltas to the end, counted. Raises what `deltas` raises."""
        out: list[tuple[int, Delta]] = []
        while batch := await self.deltas():
            out += batch
        for _, delta in out:
            self.count(delta)
        return out

    @property
    def placed_weights(self) -> str:
        """The version of the weights that the first prompt's worker has; "" also where that isn't known."""
        return ""

    def count(self, delta: Delta) -> None:
        """Counts a delta's tokens: once, before the delta is written, since chunks may carry the usage so far."""
        if self.plan.generates:
            self.completion_tokens += len(delta.tokens)
            if delta.weights not in self.weights:
                self.weights.append(delta.weights)

    async def made(self, work: Callable[[Parts], T], parts: Parts) -> T:
        """The result of `work` on a whole answer, in a thread if the answer is long. Empties `parts`."""

        def make() -> T:
            result = work(parts)
            cast(
                "list[Any] | dict[str, Any]", parts
            ).clear()  # in the thread, since freeing them takes as long as `work`
            return result

        shows_prompt = self.plan.echo is not None or self.plan.sampling[0].prompt_logprobs is not None
        tokens = self.completion_tokens + (self.prompt_tokens if shows_prompt else 0)
        return make() if tokens <= _SHORT else await asyncio.to_thread(make)

    def tokens(self) -> tuple[int, int, int]:
        """Tokens of prompts, of these cached, and of answers; with those `before`."""
        prompt, cached_tokens, completion = self.before
        completion += self.completion_tokens + self.unshown
        return prompt + self.prompt_tokens, cached_tokens + self.cached_tokens, completion
