"""Host memory that stands for the KV of a rank's blocks, marked so that a wrong or missing block shows."""

import ctypes
import mmap
from array import array

_EDGE = 8  # words at both ends of a block
_STRIDE = 8192  # words between the marks in its middle


class KvMemory:
    """`total` blocks of `block_bytes` bytes. Nothing is touched before it is used."""

    def __init__(self, total: int, block_bytes: int) -> None:
        self.size = total * block_bytes
        # Where it can be said: pages count when they are written, not before.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        region = mmap.mmap(-1, self.size, flags=flags)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(region))
        self._words = memoryview(region).cast("Q")
        self._width = block_bytes // 8

    def mark(self, block: int, digest: int) -> None:
        """The block holds the KV of this hash."""
        start, end = block * self._width, (block + 1) * self._width
        words, edge = self._words, array("Q", [digest]) * _EDGE
        words[start : start + _EDGE] = words[end - _EDGE : end] = edge
        for at in range(start, end, _STRIDE):
            words[at] = digest

    def holds(self, block: int, digest: int) -> bool:
        """Does the block hold the KV of this hash, from end to end?"""
        start, end = block * self._width, (block + 1) * self._width
        words, edge = self._words, array("Q", [digest]) * _EDGE
        ends = words[start : start + _EDGE] == edge and words[end - _EDGE : end] == edge
        return ends and all(words[at] == digest for at in range(start, end, _STRIDE))
