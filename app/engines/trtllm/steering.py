"""A logits processor, run inside TensorRT-LLM's worker: answers begin as they did elsewhere, and don't stop too early.

TensorRT-LLM begins a grammar at the end of the prompt, and its min_tokens holds back the end of the text, but not other
tokens that end an answer. Any callable of this signature is a logits processor there.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

_NEVER = float("-inf")


class Steering:
    """The steering of one choice. It is pickled to the process that computes, and called there once for each token."""

    def __init__(self, beginning: Sequence[int], exclusions: Sequence[int], until: int, count: int) -> None:
        """First come `beginning`, and none of `exclusions` before token number `until`; `count` are out."""
        self._begun, self._banned, self._until, self._made = list(beginning), list(exclusions), until, count

    def __call__(
        self,
        _request: int,
        logits: Any,  # a tensor, the last dimension is the vocabulary
        _tokens: list[list[int]],
        stream: int | None,
        _client: int | None = None,
    ) -> None:
        count, self._made = self._made, self._made + 1
        with _on(stream):
            if count < len(self._begun):
                logits.fill_(_NEVER)
                logits[..., self._begun[count]] = 0.0
            elif count < self._until and self._banned:
                logits[..., self._banned] = _NEVER


def _on(stream: int | None) -> Any:
    if stream is None:
        return nullcontext()
    import torch

    return torch.cuda.stream(torch.cuda.ExternalStream(stream))
