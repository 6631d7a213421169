"""A logits processor, run inside vLLM's worker: an answer begun elsewhere begins here with the same tokens.

The decode engine recomputes the prompt's last token and samples the first token again. Forcing it to sample the tokens
so far, instead of adding them to the prompt, keeps all that vLLM counts from an answer's beginning as in an
uninterrupted answer: penalties, the seed's random numbers, min_tokens, stop strings, the text's first character.
"""

from typing import NamedTuple

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

BEGUN = "xylem_begun"  # in SamplingParams.extra_args: the token ids


class _Row(NamedTuple):
    begun: list[int]
    out: list[int]  # vLLM's own list, which grows; with async scheduling its last ids are placeholders


class ForceBegun(LogitsProcessor):  # type: ignore[misc]  # untyped for us: mypy skips vLLM
    def __init__(self, *_: object) -> None:  # vLLM's configuration and the device, which the logits have
        self._rows: dict[int, _Row] = {}  # by place in the batch

    def is_argmax_invariant(self) -> bool:
        """False: vLLM would skip it for greedy sampling."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._rows, batch_update, self._row)
        for index in [index for index, row in self._rows.items() if len(row.out) >= len(row.begun)]:
            del self._rows[index]

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for index, (begun, out) in self._rows.items():
            if len(out) < len(begun):
                logits[index] = float("-inf")
                logits[index, begun[len(out)]] = 0.0
        return logits

    @staticmethod
    def _row(params: SamplingParams, _prompt: list[int] | None, out: list[int]) -> _Row | None:
        begun = (params.extra_args or {}).get(BEGUN)
        return _Row(begun, out) if begun else None
