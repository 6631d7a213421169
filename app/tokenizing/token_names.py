"""Spells tokens for logprobs: a character that several tokens make is the last one's, and the others have no text."""

from collections.abc import Callable

from app.tokenizing.tokenizer import Tokenizer

_BROKEN = "\ufffd"  # stands for bytes that are no whole character
_MOST = 8  # tokens in a row that are broken; more are no character


class TokenNames:
    """Names of the tokens of a text, in their order. Joined, they are the text."""

    def __init__(self, tokenizer: Tokenizer, spell: Callable[[int], str] | None = None) -> None:
        """`spell`: the name of a token of whole characters, if not as the tokenizer decodes it alone."""
        self._tokenizer, self._spell = tokenizer, spell or tokenizer.token_text
        self._open: list[int] = []  # the last tokens, if they are no whole character yet

    def of(self, token: int) -> str:
        """The name of a token that could be the next one."""
        own = self._spell(token)
        return self._behind_open(token) if own.endswith(_BROKEN) else own

    def add(self, token: int) -> str:
        """The name of the next token."""
        own = self._spell(token)
        if not self._open and not own.endswith(_BROKEN):
            return own
        name = self._behind_open(token)
        self._open = [] if name or len(self._open) == _MOST else [*self._open, token]
        return name

    def _behind_open(self, token: int) -> str:
        text = self._tokenizer.decode([*self._open, token], skip_special_tokens=False)
        return "" if text.endswith(_BROKEN) else text
