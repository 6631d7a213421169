"""Tokenising text by its words: those that come again are not tokenised again.

A tokenizer first cuts text into words by a pattern, and each word's ids depend on the word alone. Most words of a text
have come before, and finding one takes a tenth of the time of tokenising it.
"""

import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

import tokenizers

_LONGEST = 24  # characters of a remembered word
_MOST = 2**15  # words, of the present and of the former generation each: together some 15 MB
_LOOKED_UP = 2**17  # characters; a longer text is left to the tokenizer, which lets other threads run meanwhile

_SPACES = r"\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|" + _SPACES
_CL100K = (  # Llama 3's, and many others'; Qwen's has digits one by one
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|" + _SPACES
)
_KNOWN = {_GPT2, _CL100K, _CL100K.replace("{1,3}", "")}
# No word of these patterns has a space behind another character: a text may be cut before this one.
_CUT = re.compile(r" (?<=[!-~] )(?=[!-~])")
# How models see the ASCII characters that aren't printable: ByteLevel gives each byte a letter.
_BYTE_LEVEL = {byte: 256 + number for number, byte in enumerate((*range(33), 127))}
_PIECE = 250  # characters, at least: what isn't ASCII keeps no more than these from being looked up


def word_pattern(spec: dict[str, Any]) -> str | None:
    """The pattern by which the tokenizer.json `spec` cuts texts into words; None: not one that is known here."""
    pre = spec.get("pre_tokenizer") or {}
    if pre.get("type") == "ByteLevel":
        return _GPT2 if pre.get("use_regex", True) else None
    kinds = [part.get("type") for part in pre.get("pretokenizers", ())]
    if kinds != ["Split", "ByteLevel"]:
        return None
    split, byte_level = pre["pretokenizers"]
    pattern = split["pattern"].get("Regex")
    plain = split["behavior"] == "Isolated" and not split["invert"] and not byte_level.get("use_regex", True)
    return pattern if plain and pattern in _KNOWN else None


class Words:
    """Encodes texts without the special tokens that a post-processor would add. Thread-safe."""

    def __init__(self, raw: tokenizers.Tokenizer, pattern: str) -> None:
        """Takes a tokenizer with this `word_pattern` and no normalizer."""
        self._raw = raw
        self._words = re.compile(_for_ascii(pattern), re.ASCII).findall
        self._ids = _Memory(raw.model).__getitem__

    def encode(self, text: str) -> list[int]:
        """The token ids of a text that has no added tokens in it."""
        if len(text) > _LOOKED_UP:
            return self._whole(text)
        if text.isascii():
            return list(chain.from_iterable(map(self._ids, self._words(text))))
        ids: list[int] = []
        for piece in _pieces(text):
            ids += chain.from_iterable(map(self._ids, self._words(piece))) if piece.isascii() else self._whole(piece)
        return ids

    def _whole(self, text: str) -> list[int]:
        ids: list[int] = self._raw.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids


class _Memory(dict[str, tuple[int, ...]]):
    """ASCII word → ids. When it is full it begins anew, and what it had is forgotten unless it is asked for again."""

    def __init__(self, model: tokenizers.models.Model) -> None:
        super().__init__()
        self._model = model
        self._former: dict[str, tuple[int, ...]] = {}

    def __missing__(self, word: str) -> tuple[int, ...]:
        ids = self._former.get(word)
        if ids is None:
            ids = tuple([token.id for token in self._model.tokenize(word.translate(_BYTE_LEVEL))])
        if len(word) <= _LONGEST:
            if len(self) >= _MOST:
                self._former = self.copy()
                self.clear()
            self[word] = ids
        return ids


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while match := _CUT.search(text, start + _PIECE):
        yield text[start : match.start()]
        start = match.start()
    yield text[start:]


def _for_ascii(pattern: str) -> str:
    r"""The pattern for ASCII texts: Python's `re` doesn't know \p{…}."""
    within = re.sub(r"\[.*?\]", lambda match: match[0].replace(r"\p{L}", "A-Za-z").replace(r"\p{N}", "0-9"), pattern)
    return within.replace(r"\p{L}", "[A-Za-z]").replace(r"\p{N}", "[0-9]")
