"""Blocks of an engine that has numbers of its own for the tokens of a picture, as SGLang has. No I/O."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from app.kv.blocks import media_key

_BEYOND_TEXT = 2**32  # the numbers of text's tokens are lower


class OpenPicture(NamedTuple):
    """A picture whose tokens reach to the end of a block."""

    sha256: str
    tokens: int  # of it, up to there


class Translated(NamedTuple):
    tokens: list[int]  # as prompts have them
    extras: dict[int, bytes]  # as `blocks.chain` takes them
    open: list[OpenPicture | None]  # after each block


def has_stand_ins(tokens: Sequence[int]) -> bool:
    return max(tokens, default=0) >= _BEYOND_TEXT


def translate(
    tokens: Sequence[int], block_size: int, pictures: Mapping[int, tuple[int, str]], before: OpenPicture | None
) -> Translated | None:
    """None where a number is not known. `pictures`: as an engine's `KvEventSource` has them."""
    plain, extras, ends = list(tokens), {}, []
    sha256, length = before or (None, 0)
    for start in range(0, len(tokens), block_size):
        overlapping: list[tuple[str, int]] = []
        for at, token in enumerate(tokens[start : start + block_size]):
            if token < _BEYOND_TEXT:
                sha256, length = None, 0
                continue
            if token not in pictures:
                return None
            plain[start + at], digest = pictures[token]
            if digest != sha256:
                sha256, length = digest, 0
            if not at or not length:
                overlapping.append((digest, at - length))
            length += 1
        if overlapping:
            extras[start // block_size] = media_key(overlapping)
        ends.append(None if sha256 is None else OpenPicture(sha256, length))
    return Translated(plain, extras, ends)
