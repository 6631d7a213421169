"""Prompts with a trace's lengths and shared prefixes, of words drawn at random: their text means nothing.

Blocks are made of words, as many as the server's tokenizer makes 512 tokens of on average: see `Measure`.
"""

from functools import lru_cache
from hashlib import shake_128

from msgspec import Struct

from app.cli.trace import BLOCK_TOKENS, Request

# 128, common and short, so that most are one token of usual vocabularies, and none is a special one.
_TEXT = """
about after again air all also an and any are as ask at away back be been big but by call came can come could
day did do down each end find first food for found from get give go good got great had hand has have he head
help her here high him his home house how if in into is it just keep know last left let life light like live
long look made make man many may me more most move much must my name need new next no not now of off old on
one only open or our out over own part place play point put read right run said same say see set she show side
small so some still stop such
"""
_WORDS = _TEXT.split()
WORDS = len(_WORDS)


class Measure(Struct, frozen=True):
    """A measure of how many tokens a server counts for a text of ours."""

    per_word: float
    beside: float  # of the chat template, in each prompt

    @classmethod
    def of(cls, short: tuple[int, int], long: tuple[int, int]) -> "Measure":
        """A measure from (words, tokens) of two prompts: the short one begins the long one. Raises: ValueError."""
        per_word = (long[1] - short[1]) / (long[0] - short[0])
        if per_word <= 0:
            raise ValueError("the server counts no more tokens for a longer prompt")
        return cls(per_word, max(0.0, short[1] - per_word * short[0]))


def sample(times: int) -> str:
    """A text that has all words so often, in one order."""
    return " ".join(_WORDS * times)


def _drawn(words: int, seed: str) -> list[str]:
    """A prompt may have a hundred thousand: `random` takes ten times as long."""
    return [_WORDS[byte & 127] for byte in shake_128(seed.encode()).digest(words)]


class Prompts:
    def __init__(self, measure: Measure, seed: str) -> None:
        """Two replays with the same `seed` have the same prompts, so that the second finds the first one's KV."""
        self._measure, self._seed = measure, seed
        self._block = lru_cache(maxsize=4096)(self._made)  # some kilobytes each

    def text(self, request: Request, number: int) -> str:
        """`number`: of the request in its trace, for blocks that it shares with nobody. At least one word."""
        remaining_words = max(1, round((request.input_length - self._measure.beside) / self._measure.per_word))
        parts = []
        for position in range(-(-request.input_length // BLOCK_TOKENS)):
            name = str(request.hash_ids[position]) if request.hash_ids else f"{number}/{position}"
            words = self._words(position)
            parts.append(
                self._block(name, position) if words <= remaining_words else self._made(name, position, remaining_words)
            )
            remaining_words -= words
            if remaining_words <= 0:
                break
        return " ".join(parts)

    def _words(self, position: int) -> int:
        """Number of words of the block at that position: rounded so that errors don't add up."""
        ends = (round(BLOCK_TOKENS * n / self._measure.per_word) for n in (position, position + 1))
        return -next(ends) + next(ends)

    def _made(self, name: str, position: int, most: int | None = None) -> str:
        return " ".join(_drawn(self._words(position), f"{self._seed}/{name}")[:most])
