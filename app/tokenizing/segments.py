"""Tokenising a conversation by its segments: those of earlier turns are not tokenised again.

Every request carries the system prompt and the whole history. Between special tokens (`<|im_start|>` and the like)
the tokenizers of chat models work on each piece of text alone, so the ids of a piece can be remembered.
"""

import re
from array import array
from functools import lru_cache
from typing import Any

import tokenizers

from app.tokenizing.words import Words, word_pattern

_MAX_CHARS = 8192  # of a remembered segment
_MAX_SEGMENTS = 512  # with the above at most some 20 MB of English, three times that of Chinese


def independent(spec: dict[str, Any]) -> bool:
    """Whether the tokenizer.json `spec` works on each segment alone, at least of ASCII texts.

    Known to be so of tokenizers without normalizer, whose added tokens take no neighbouring space, and whose
    pre-tokenizers don't treat the beginning of the text as special. With others, texts have to be encoded whole.
    NFC leaves ASCII as it is.
    """
    added_tokens = spec.get("added_tokens") or []
    plain = all(not (t["lstrip"] or t["rstrip"] or t["single_word"] or t["normalized"]) for t in added_tokens)
    pre = spec.get("pre_tokenizer") or {}
    parts = pre.get("pretokenizers", [pre])
    has_known_parts = all(
        p.get("type") in ("ByteLevel", "Split", "Digits") and not p.get("add_prefix_space") for p in parts
    )
    return bool(added_tokens) and plain and has_known_parts and spec.get("normalizer") in (None, {"type": "NFC"})


class Segments:
    """Encodes texts without the special tokens that a post-processor would add. Thread-safe."""

    def __init__(self, raw: tokenizers.Tokenizer, spec: dict[str, Any]) -> None:
        """Takes a tokenizer that is `independent`."""
        self._raw = raw
        self.normalizes = spec.get("normalizer") is not None
        self._special = {t["content"]: [t["id"]] for t in spec["added_tokens"]}
        # The longest first: one token may begin another.
        names = sorted(map(re.escape, self._special), key=len, reverse=True)
        self._split = re.compile("(" + "|".join(names) + ")").split
        pattern = word_pattern(spec)
        self._encode = self._whole if pattern is None else Words(raw, pattern).encode
        self._remembered = lru_cache(_MAX_SEGMENTS)(lambda segment: array("I", self._encode(segment)))

    def takes(self, text: str) -> bool:
        """Whether `encode` gives what encoding it whole gives."""
        return not self.normalizes or text.isascii()

    def encode(self, text: str) -> list[int]:
        """The token ids of a text that it `takes`."""
        ids: list[int] = []
        for segment in self._split(text):
            if segment in self._special:
                ids += self._special[segment]
            elif segment:
                ids += self._remembered(segment) if len(segment) <= _MAX_CHARS else self._encode(segment)
        return ids

    def _whole(self, segment: str) -> list[int]:
        ids: list[int] = self._raw.encode_batch_fast([segment], add_special_tokens=False)[0].ids
        return ids
