"""Logprobs in OpenAI's two shapes."""

from math import isnan
from typing import Any

from app.messages import Delta, TokenLogprob


def chat_logprobs(d: Delta) -> dict[str, Any] | None:
    if d.logprobs is None:
        return None
    return {"content": [token_logprob(lp) for lp in d.logprobs], "refusal": None}


def token_logprob(lp: TokenLogprob) -> dict[str, Any]:
    top = [{"token": t, "logprob": p, "bytes": list(t.encode())} for t, _, p in lp.top]
    return {"token": lp.token, "logprob": lp.logprob, "bytes": list(lp.token.encode()), "top_logprobs": top}


class TextLogprobs:
    """The text completions' shape counts the offset of each token in the text, so it remembers per choice."""

    def __init__(self) -> None:
        self._offset: dict[int, int] = {}

    def __call__(self, choice: int, d: Delta) -> dict[str, Any] | None:
        """A NaN logprob stands for a token that nothing predicts (see `Echo`)."""
        if d.logprobs is None:
            return None
        offsets = []
        for lp in d.logprobs:
            offsets.append(self._offset.get(choice, 0))
            self._offset[choice] = offsets[-1] + len(lp.token)
        return {
            "tokens": [lp.token for lp in d.logprobs],
            "token_logprobs": [None if isnan(lp.logprob) else lp.logprob for lp in d.logprobs],
            "top_logprobs": [{t: p for t, _, p in lp.top} or None for lp in d.logprobs],
            "text_offset": offsets,
        }
