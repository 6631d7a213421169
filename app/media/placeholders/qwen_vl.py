"""Qwen2-VL and Qwen2.5-VL: a token for each square of patches, at the picture's own proportions."""

import math
from typing import ClassVar

from msgspec import Struct

_MOST_RATIO = 200  # of the sides


class QwenVl(Struct, frozen=True):
    token_id: int
    patch: int  # pixels of a patch's side
    merge: int  # patches of a square's side
    least: int  # pixels of a picture, after scaling, here and below
    most: int
    marker: str = "<|vision_start|><|image_pad|><|vision_end|>"
    takes_videos: ClassVar = False  # they have tokens of their own, for two frames at a time

    def tokens(self, height: int, width: int) -> list[int]:
        if max(height, width) > _MOST_RATIO * min(height, width):
            raise ValueError(f"one side is more than {_MOST_RATIO} times the other")
        side = self.patch * self.merge
        rows, columns = self._scaled(height, width, side)
        return [self.token_id] * ((rows // side) * (columns // side))

    def _scaled(self, height: int, width: int, side: int) -> tuple[int, int]:
        """Pixels, multiples of `side`."""
        rows, columns = round(height / side) * side, round(width / side) * side
        if rows * columns > self.most:
            scale = math.sqrt(height * width / self.most)
            return max(side, int(height / scale / side) * side), max(side, int(width / scale / side) * side)
        if rows * columns < self.least:
            scale = math.sqrt(self.least / (height * width))
            return math.ceil(height * scale / side) * side, math.ceil(width * scale / side) * side
        return rows, columns
