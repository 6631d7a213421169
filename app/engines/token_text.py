"""The text of tokens behind a prompt, one token after the other."""

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

_TAIL = 16  # tokens of the prompt that a first character may depend on


class TokenText:
    """Holds back what is not a whole character yet, also one that the prompt has begun."""

    __slots__ = ("_special", "_stream", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], *, special: bool) -> None:
        """`special`: special tokens have a text."""
        self._tokenizer, self._special = tokenizer, special
        self._stream = stream_behind(tokenizer, prompt, special=special)

    def __call__(self, token: int) -> str:
        try:
            return self._stream.step(self._tokenizer, token) or ""
        except Exception:  # noqa: BLE001 (it has no other: "Invalid prefix", of bytes that were no text together)
            self._stream = DecodeStream(skip_special_tokens=not self._special)
            return self._stream.step(self._tokenizer, token) or ""


def stream_behind(tokenizer: Tokenizer, prompt: Sequence[int], *, special: bool) -> DecodeStream:
    """Has read the prompt's end, a token at a time.

    One that is given the tokens at once would begin with all their text, if they end within a character.
    """
    stream = DecodeStream(skip_special_tokens=not special)
    for token in prompt[-_TAIL:]:
        try:
            stream.step(tokenizer, token)
        except Exception:  # noqa: BLE001 (as above)
            stream = DecodeStream(skip_special_tokens=not special)
    return stream


def ends_within_character(tokenizer: Tokenizer, tokens: Sequence[int]) -> bool:
    """Whether they end so, or with the sign that stands for what is no character."""
    return tokenizer.decode(list(tokens[-_TAIL:]), skip_special_tokens=False).endswith("\ufffd")
