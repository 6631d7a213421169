"""Idefics3 and SmolVLM: a picture is split into tiles, each with its row and column, and the whole comes last."""

import math
from functools import lru_cache
from typing import ClassVar

from msgspec import Struct

from app.tokenizing.tokenizer import Tokenizer

_MOST = 4096  # pixels of the longer side
_AROUND, _WHOLE = "<fake_token_around_image>", "<global-img>"


class Idefics3(Struct, frozen=True):
    tokenizer: Tokenizer
    token_id: int
    longest_edge: int  # pixels that a picture's longer side is scaled to
    tile: int  # pixels of a tile's side
    tile_tokens: int
    splits: bool  # else there is only the whole
    marker: str = "<image>"
    takes_videos: ClassVar = True

    def tokens(self, height: int, width: int) -> list[int]:
        return list(_written(self, *self._tiles(height, width)))

    def _tiles(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns; (0, 0): it is not split."""
        if not self.splits:
            return 0, 0
        height, width = _scaled(height, width, self.longest_edge)
        rows, columns = -(-height // self.tile), -(-width // self.tile)
        return (rows, columns) if rows > 1 or columns > 1 else (0, 0)


def _scaled(height: int, width: int, longest: int) -> tuple[int, int]:
    """Scales as the models' own processor does: also upwards, the shorter side even, and rounded in this order."""
    ratio = width / height
    if width >= height:
        height, width = _even(int(longest / ratio)), longest
    else:
        height, width = longest, _even(int(longest * ratio))
    height, width = max(1, height), max(1, width)
    ratio = width / height
    if width >= height and width > _MOST:
        height, width = int(_MOST / ratio), _MOST
    elif height > width and height > _MOST:
        height, width = _MOST, int(_MOST * ratio)
    return max(1, math.floor(height)), max(1, math.floor(width))


def _even(side: int) -> int:
    return side + side % 2


@lru_cache(256)
def _written(family: Idefics3, rows: int, columns: int) -> tuple[int, ...]:
    """Tokens, made of one text: the line feeds at the end are one token in some vocabularies."""
    body = family.marker * family.tile_tokens
    tiles = "".join(
        "".join(f"{_AROUND}<row_{r + 1}_col_{c + 1}>{body}" for c in range(columns)) + "\n" for r in range(rows)
    )
    text = f"{tiles}\n" if rows else ""
    return tuple(family.tokenizer.encode(f"{text}{_AROUND}{_WHOLE}{body}{_AROUND}", add_special_tokens=False))
