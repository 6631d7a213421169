"""The tokens that the simulated model chooses from, and their text."""

import re

from app.errors import SettingsError
from app.tokenizing.token_names import TokenNames
from app.tokenizing.tokenizer import Tokenizer

TOP = 20  # tokens with a noticeable probability, at every position
_CLOSING = ('"', "}", "]", ",", ":", "<", "\n")
_WORD = re.compile(r" [A-Za-z]+")


class Vocabulary:
    """Words only: tokens of a space and letters. Any chain of them is valid text and encodes to itself again."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises: SettingsError when the tokenizer has too few words."""
        self.tokenizer = tokenizer
        self.size = tokenizer.vocab_size
        self.eos_id = tokenizer.eos_id
        self.texts = _texts(tokenizer)
        words = [token for token, text in enumerate(self.texts) if _WORD.fullmatch(text)]
        if len(words) < TOP:
            raise SettingsError(f"the tokenizer has {len(words)} words, the mock engine needs {TOP}")
        self.words = len(words)
        closing = [token for token, text in enumerate(self.texts) if text in _CLOSING]
        closing.sort(key=lambda token: _CLOSING.index(self.texts[token]))
        self.closing = [*(() if self.eos_id is None else (self.eos_id,)), *closing]  # the preferred one first
        self.wheel = words + words[:TOP]  # TOP neighbours from any start, without wrapping

    def names(self) -> TokenNames:
        """Names of a text's tokens, in logprobs."""
        return TokenNames(self.tokenizer, self._name)

    def _name(self, token: int) -> str:
        """Special tokens have one, too."""
        return self.texts[token] or self.tokenizer.token_text(token)


def _texts(tokenizer: Tokenizer) -> list[str]:
    """The text of each token within a text; '' for special tokens."""
    # Alone, a token may be decoded without its leading space; after another one it keeps it.
    before = tokenizer.encode("a", add_special_tokens=False)
    prefix = len(tokenizer.decode(before))
    texts = tokenizer.raw.decode_batch([[*before, token] for token in range(tokenizer.vocab_size)])
    return [text[prefix:] for text in texts]
