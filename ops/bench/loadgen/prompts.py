"""Prompts of ordinary words: about one token each in a usual vocabulary. The same for the same seed."""

from random import Random
from typing import Literal, get_args

Kind = Literal["short", "fixed", "unique", "prefix"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_SHORT = "Name three rivers, in one line."
_TEXT = (
    "a about after again all an and any are as ask at away back be been before but by call can close does each end "
    "every far first for found from get go had has have he here if in into is it its last list live made may more "
    "most never new no not now number of on one only or other out over own part same so some that the their them "
    "then there these they this those through time to two under way what where which while who with without work"
)
_WORDS = _TEXT.split()


def words(random: Random, count: int) -> str:
    return " ".join(random.choices(_WORDS, k=count))


def prompts(kind: Kind, count: int, random: Random, length: int, groups: int, own: int) -> list[str]:
    """User messages. `length`: words of a prompt, but for `short`.

    `fixed`: all are the same; `unique`: none has a beginning in common with another. `prefix`: as many in each of the
    `groups`, in random order; those of a group begin with the same `length` words, and end with `own` words.
    """
    match kind:
        case "short":
            return [_SHORT] * count
        case "fixed":
            return [words(random, length)] * count
        case "unique":
            return [words(random, length) for _ in range(count)]
        case "prefix":
            beginnings = [words(random, length) for _ in range(groups)]
            texts = [f"{beginnings[number % groups]} {words(random, own)}" for number in range(count)]
            random.shuffle(texts)
            return texts
