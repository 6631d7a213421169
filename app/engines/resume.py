"""An answer that goes on behind what is out of it already, from whichever engine."""

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class Behind:
    """What of the text made here is behind what was out: the engine that began may have held back more, or less."""

    __slots__ = ("_owed", "_skip")

    def __init__(self, made: str = "", out: int = 0) -> None:
        """`made` is what the tokens that are out give here, of which `out` characters are out."""
        self._owed, self._skip = made[out:], max(0, out - len(made))

    def __call__(self, text: str) -> str:
        if not self._owed and not self._skip:
            return text
        text, self._owed = self._owed + text, ""
        skip = min(self._skip, len(text))
        self._skip -= skip
        return text[skip:]


def text_behind(tokenizer: Tokenizer, prompt: Sequence[int], tokens: Sequence[int], *, special: bool) -> str:
    """The text of `tokens` behind `prompt`, without a character that isn't whole yet. `special` tokens may be text."""
    stream = DecodeStream(ids=list(prompt), skip_special_tokens=not special)
    return "".join(stream.step(tokenizer, token) or "" for token in tokens)
