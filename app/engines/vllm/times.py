"""A logits processor, run inside vLLM's worker: Whisper's rules for tokens of time, as its authors' own code has them.

Without them a small model tells no time before its last word: no single time is likelier than the next word, though
all times together are.

One rule is ours. Of a text that goes on behind the window, Whisper may tell only when it begins, and end its answer:
"go on from here". Its authors' code then moves the window. Ours stay: the model has to write what it hears of the text.
"""

from typing import NamedTuple

import torch
from vllm import SamplingParams

from app.engines.vllm.row_processor import RowProcessor

TIMES = "xylem_times"  # in SamplingParams.extra_args: the token of 0.00 s, the one that ends an answer, `until`
_NEVER = float("-inf")


class _Row(NamedTuple):
    first: int  # the token of 0.00 s, after which the others come
    end: int
    until: int  # a text that begins before this time is written
    before: list[int]  # from the prompt's first time on
    out: list[int]  # vLLM's own list, which grows


class TellTimes(RowProcessor[_Row]):
    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for index, row in self.rows.items():
            restrict(logits[index], row.first, row.end, [*row.before, *row.out], row.until)
        return logits

    @staticmethod
    def row(params: SamplingParams, prompt: list[int] | None, out: list[int]) -> _Row | None:
        times = (params.extra_args or {}).get(TIMES)
        if not times:
            return None
        first, end, until = times
        tokens = prompt or []
        begin = next((place for place, token in enumerate(tokens) if token >= first), len(tokens))
        return _Row(first, end, until, list(tokens[begin:]), out)


def restrict(logits: torch.Tensor, first: int, end: int, tokens: list[int], until: int) -> None:
    """Changes one row. `tokens`: all tokens from the first time on, of which there is one at least."""
    is_time = tokens[-1] >= first
    if is_time and (len(tokens) < 2 or tokens[-2] >= first):
        logits[first:] = _NEVER  # a text begins
        if len(tokens) > 1 and tokens[-1] < until:  # the prompt's own time is no promise: maybe nobody speaks
            logits[end] = _NEVER
    elif is_time:
        logits[:end] = _NEVER  # a text has ended: the next one begins, or the answer ends
    latest = max(token for token in tokens if token >= first)
    opens = is_time and len(tokens) > 1 and tokens[-2] < first  # the next text may begin when this one ends
    logits[first : latest if opens else latest + 1] = _NEVER
    chances = logits.log_softmax(dim=-1)
    if chances[first:].logsumexp(dim=-1) > chances[:first].max():
        logits[:first] = _NEVER
