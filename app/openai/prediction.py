"""`prediction`: how much of the text that a client expected came, for models whose engine drafts from prompts.

The prediction itself reaches no engine: it drafts from the prompt, which has the text that is to be changed.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from app.dispatch.generation_base import GenerationBase
from app.messages.events import Delta
from app.openai.answer_types import ChatAnswer, Completion, Usage
from app.openai.chat_writer import ChatWriter
from app.openai.parts_writer import PartsWriter
from app.openai.schemas import ChatRequest, Prediction

_RUN = 2  # tokens by which the place in the prediction is found again


def accepted(prediction: Sequence[int], answer: Sequence[int]) -> int:
    """Number of the answer's tokens that the prediction has at their place: after the tokens before them. Linear."""
    after: dict[tuple[int, ...], int] = {}
    for end in range(len(prediction), _RUN - 1, -1):
        after[tuple(prediction[end - _RUN : end])] = end
    at, count = 0, 0
    for i, token in enumerate(answer):
        if at < len(prediction) and prediction[at] == token:
            at, count = at + 1, count + 1
        else:
            at = after.get(tuple(answer[max(0, i + 1 - _RUN) : i + 1]), len(prediction))
    return count


class _Predicted(ChatWriter):
    """Collects the answer's tokens, and counts when it is complete."""

    def __init__(self, call: GenerationBase, body: ChatRequest, *more: Any) -> None:
        super().__init__(call, body, *more)
        assert body.prediction is not None
        self._predicted: Prediction = body.prediction
        self._answered: dict[int, list[int]] = defaultdict(list)  # tokens, by choice
        self._counted: Completion = {}

    def delta(self, choice: int, d: Delta) -> bytes:
        self._answered[choice] += d.tokens
        return super().delta(choice, d)

    def answer(self, choices: list[tuple[int, Delta]]) -> ChatAnswer:
        for choice, d in choices:
            self._answered[choice] += d.tokens
        self._count()
        return super().answer(choices)

    def usage(self) -> Usage:
        usage = super().usage()
        usage["completion_tokens_details"] = {**usage.get("completion_tokens_details", {}), **self._counted}
        return usage

    async def settle(self) -> None:
        await super().settle()
        if self._usage_at_end:
            await asyncio.to_thread(self._count)

    def _count(self) -> None:
        prediction = self._call.model.tokenizer.encode(self._predicted.text, add_special_tokens=False)
        hits = sum(accepted(prediction, answer) for answer in self._answered.values())
        rest = max(0, len(prediction) * len(self._answered) - hits)
        self._counted = {"accepted_prediction_tokens": hits, "rejected_prediction_tokens": rest}


class PredictedChat(_Predicted):
    """A chat whose text is all content."""


class PredictedParts(_Predicted, PartsWriter):
    """A chat whose text is parsed."""
