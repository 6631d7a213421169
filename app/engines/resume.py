"""Continues the text of an answer that another engine may have begun."""

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace
from tokenizers import Tokenizer

from app.engines.token_text import TokenText
from app.ids import RunId
from app.messages.job import PartialOutput, Sampling

_STRIDE = 0x9E3779B9  # between the seeds of an answer continued after different numbers of tokens


class ContinuedText:
    """Cuts the text made here to the part not sent yet: the first engine may have held back more, or less."""

    __slots__ = ("_owed", "_skip")

    def __init__(self, text_so_far: str = "", out: int = 0) -> None:
        """`text_so_far`: the text that the tokens so far give here. `out`: how many characters have been sent."""
        self._owed, self._skip = text_so_far[out:], max(0, out - len(text_so_far))

    def __call__(self, text: str) -> str:
        if not self._owed and not self._skip:
            return text
        text, self._owed = self._owed + text, ""
        skip = min(self._skip, len(text))
        self._skip -= skip
        return text[skip:]


def text_behind(tokenizer: Tokenizer, prompt: Sequence[int], tokens: Sequence[int], *, special: bool) -> str:
    """The text of `tokens` after `prompt`, without a last incomplete character. `special`: show special tokens."""
    return "".join(map(TokenText(tokenizer, prompt, special=special), tokens))


def part(request: RunId, index: int) -> RunId:
    """The id of a choice's own request."""
    return RunId(f"{request}-{index}")


def rest(s: Sampling, beginning: PartialOutput, index: int) -> Sampling:
    """The sampling for the rest after `beginning`; without stop strings, which adapters find across the border."""
    out = len(beginning.tokens)
    bias = dict(s.logit_bias or {})
    if s.presence_penalty or s.frequency_penalty:
        for token, count in Counter(beginning.tokens).items():
            bias[token] = bias.get(token, 0.0) - s.presence_penalty - s.frequency_penalty * count
    return replace(
        s,
        n=1,
        max_tokens=s.max_tokens - out,
        min_tokens=max(0, s.min_tokens - out),
        seed=None if s.seed is None else (s.seed + index + out * _STRIDE) % 2**63,  # vLLM gives choice i seed + i
        stop=(),
        prompt_logprobs=None if out else s.prompt_logprobs,
        logit_bias=bias or None,
    )
