"""Spells tokens for logprobs: a character that several tokens make is the last one's, and the others have no text."""

from collections.abc import Callable

from app.tokenizing.tokenizer import Tokenizer

_BROKEN = "\ufffd"  # stands for bytes that are no whole character
_MOST = 3  # tokens that begin a character of four bytes


class TokenNames:
    """Names of the tokens of a text, in their order. Joined, they are the text."""

    def __init__(self, tokenizer: Tokenizer, spell: Callable[[int], str] | None = None) -> None:
        """`spell`: the name of a token of whole characters, if not as the tokenizer decodes it alone."""
        self._tokenizer, self._spell = tokenizer, spell or tokenizer.token_text
        self._open: list[int] = []  # the last tokens, if they end amid a character
        self._named = 0  # characters of these that have been in names

    def of(self, token: int) -> str:
        """The name of a token that could be the next one."""
        own = self._spell(token)
        return self._text([*self._open, token])[0][self._named :] if own.endswith(_BROKEN) else own

    def add(self, token: int) -> str:
        """The name of the next token."""
        own = self._spell(token)
        if not self._open and not own.endswith(_BROKEN):
            return own
        tokens = [*self._open, token]
        text, ends = self._text(tokens)
        name = text[self._named :]
        if ends:
            tokens, text = [], ""
        elif len(tokens) > _MOST:
            tokens = tokens[-_MOST:]
            text, _ = self._text(tokens)
        self._open, self._named = tokens, len(text)
        return name

    def _text(self, tokens: list[int]) -> tuple[str, bool]:
        """The text of tokens without a character that they only begin, and whether they end with a whole one."""
        text = self._tokenizer.decode(tokens, skip_special_tokens=False)
        whole_text = text.rstrip(_BROKEN)
        return whole_text, text == whole_text
