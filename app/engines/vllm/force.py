"""A logits processor, run inside vLLM's worker: an answer begun elsewhere begins here with the same tokens.

The decode engine recomputes the prompt's last token and samples the first token again. Forcing it to sample the tokens
so far, instead of adding them to the prompt, keeps all that vLLM counts from an answer's beginning as in an
uninterrupted answer: penalties, the seed's random numbers, min_tokens, stop strings, the text's first character.
"""

from typing import NamedTuple

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate

from app.engines.vllm.row_processor import RowProcessor

BEGUN = "xylem_begun"  # in SamplingParams.extra_args: the token ids


class _Row(NamedTuple):
    begun: list[int]
    out: list[int]  # vLLM's own list, which grows; with async scheduling its last ids are placeholders


class ForceBegun(RowProcessor[_Row]):
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        super().update_state(batch_update)
        for index in [index for index, row in self.rows.items() if len(row.out) >= len(row.begun)]:
            del self.rows[index]

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for index, (tokens, out) in self.rows.items():
            if len(out) < len(tokens):
                logits[index] = float("-inf")
                logits[index, tokens[len(out)]] = 0.0
        return logits

    @staticmethod
    def row(params: SamplingParams, _prompt: list[int] | None, out: list[int]) -> _Row | None:
        tokens = (params.extra_args or {}).get(BEGUN)
        return _Row(tokens, out) if tokens else None
