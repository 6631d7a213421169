"""An answer so far, counted: the same whether it is being made here or read from where it is kept."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from app.dispatch.generation_plan import GenerationPlan
from app.ids import RequestId
from app.messages import Delta

T = TypeVar("T")
Parts = TypeVar("Parts", list[tuple[int, Delta]], dict[str, Any])

_SHORT = 512  # tokens of an answer whose body is made at once, with all the logprobs that there may be


class GenerationBase:
    def __init__(self, request: RequestId, came: float, plan: GenerationPlan) -> None:
        """`came`: when the request did, seconds since the epoch."""
        self.id, self.created = request, int(came)
        self.plan, self.model, self.prompts, self.choices = plan, plan.model, plan.prompts, plan.choices
        self.prompt_tokens = sum(map(len, plan.prompts))
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.vectors: dict[int, bytes] = {}  # of prompts that are inputs, by number: see `messages.Vectors`
        self.skip = 0  # deltas that the client has already

    async def deltas(self) -> list[tuple[int, Delta]]:
        """New deltas by choice number, not counted yet; the empty list when all prompts are done.

        Raises: the error that ended a prompt; Cancelled when the client has gone.
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

    def count(self, delta: Delta) -> None:
        """Each delta once, before it is shown: chunks may carry the usage so far."""
        if self.plan.generates:
            self.completion_tokens += len(delta.tokens)

    async def made(self, work: Callable[[Parts], T], parts: Parts) -> T:
        """The result of `work` on a whole answer, in a thread if that is long. `parts` are empty afterwards."""

        def make() -> T:
            made = work(parts)
            parts.clear()  # here, since freeing them takes as long as making something of them
            return made

        shows_prompt = self.plan.echo is not None or self.plan.sampling[0].prompt_logprobs is not None
        tokens = self.completion_tokens + (self.prompt_tokens if shows_prompt else 0)
        return make() if tokens <= _SHORT else await asyncio.to_thread(make)

    def envelope(self, kind: str) -> dict[str, object]:
        named = {"id": self.id, "object": kind, "created": self.created, "model": self.model.name}
        return named | {"service_tier": self.plan.tier} if self.plan.tier else named

    def usage(self) -> dict[str, object]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
