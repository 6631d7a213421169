"""Logprobs in OpenAI's two shapes."""

from math import isnan

from app.messages.events import Delta, TokenLogprob
from app.openai import answer_types as shown


def chat_logprobs(d: Delta, *, as_ids: bool = False) -> shown.ChatLogprobs | None:
    """`as_ids`: tokens are shown as `token_id:<id>`, as `return_tokens_as_token_ids` asks for."""
    if d.logprobs is None:
        return None
    return {"content": [token_logprob(lp, as_ids=as_ids) for lp in d.logprobs], "refusal": None}


def token_logprob(lp: TokenLogprob, *, as_ids: bool = False) -> shown.TokenLogprob:
    return {
        "token": _by_id(lp.token_id) if as_ids else lp.token,
        "logprob": lp.logprob,
        "bytes": list(lp.token.encode()),
        "top_logprobs": [
            {"token": _by_id(token) if as_ids else text, "logprob": logprob, "bytes": list(text.encode())}
            for text, token, logprob in lp.top
        ],
    }


def prompt_logprobs(d: Delta) -> shown.PromptLogprobs:
    """Logprobs in vLLM's shape: for each token of the prompt, itself and the likeliest tokens in its place, by id.

    None for the first. The engine may not know the rank of a token that is not among the likeliest.
    """
    entries: shown.PromptLogprobs = []
    for lp in d.prompt_logprobs or ():
        if lp is None:
            entries.append(None)
            continue
        tokens: dict[str, shown.PromptLogprob] = {
            str(lp.token_id): {"logprob": lp.logprob, "rank": lp.rank or None, "decoded_token": lp.token}
        }
        for rank, (text, token, logprob) in enumerate(lp.top, 1):
            tokens[str(token)] = {"logprob": logprob, "rank": rank, "decoded_token": text}
        entries.append(tokens)
    return entries


def _by_id(token: int) -> str:
    return f"token_id:{token}"


class TextLogprobs:
    """Logprobs in the text completions' shape, which has each token's offset in its choice's text."""

    def __init__(self, *, as_ids: bool = False) -> None:
        self._as_ids = as_ids
        self._offset: dict[int, int] = {}

    def __call__(self, choice: int, d: Delta) -> shown.TextLogprobs | None:
        """A NaN logprob stands for a token that nothing predicts (see `Echo`)."""
        if d.logprobs is None:
            return None
        offsets = []
        for lp in d.logprobs:
            offsets.append(self._offset.get(choice, 0))
            self._offset[choice] = offsets[-1] + len(lp.token)
        by_id = self._as_ids
        return {
            "tokens": [_by_id(lp.token_id) if by_id else lp.token for lp in d.logprobs],
            "token_logprobs": [None if isnan(lp.logprob) else lp.logprob for lp in d.logprobs],
            "top_logprobs": [None if isnan(lp.logprob) else _top(lp, as_ids=by_id) for lp in d.logprobs],
            "text_offset": offsets,
        }


def _top(lp: TokenLogprob, *, as_ids: bool) -> dict[str, float]:
    """The likeliest tokens. As at OpenAI, the token itself is one of them."""
    own = {_by_id(lp.token_id) if as_ids else lp.token: lp.logprob}
    if not lp.top:  # of a long prompt, there may be twenty thousand
        return own
    return {_by_id(i) if as_ids else t: p for t, i, p in lp.top} | own
