"""Continues the text of an answer that another engine may have begun."""

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class ContinuedText:
    """Cuts the text made here to the part not sent yet: the first engine may have held back more, or less."""

    __slots__ = ("_owed", "_skip")

    def __init__(self, made: str = "", out: int = 0) -> None:
        """`made`: the text that the tokens so far give here. `out`: how many characters have been sent."""
        self._owed, self._skip = made[out:], max(0, out - len(made))

    def __call__(self, text: str) -> str:
        if not self._owed and not self._skip:
            return text
        text, self._owed = self._owed + text, ""
        skip = min(self._skip, len(text))
        self._skip -= skip
        return text[skip:]


def text_behind(tokenizer: Tokenizer, prompt: Sequence[int], tokens: Sequence[int], *, special: bool) -> str:
    """The text of `tokens` after `prompt`, without a last incomplete character. `special`: show special tokens."""
    stream = DecodeStream(ids=list(prompt), skip_special_tokens=not special)
    return "".join(stream.step(tokenizer, token) or "" for token in tokens)
