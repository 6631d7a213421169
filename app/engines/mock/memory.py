"""Host memory as the KV of a rank's blocks, with marks that reveal a wrong or missing block."""

import ctypes
import mmap
from array import array

_EDGE = 8  # words at both ends of a block
_STRIDE = 8192  # words between the marks in its middle


class KvMemory:
    """`total` blocks of `block_bytes` bytes. Pages are allocated on first use."""

    def __init__(self, total: int, block_bytes: int) -> None:
        self.size = total * block_bytes
        # Where supported: pages count as used memory only once they are written.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        region = mmap.mmap(-1, self.size, flags=flags)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(region))
        self._words = memoryview(region).cast("Q")
        self._width = block_bytes // 8

    def mark(self, block: int, digest: int) -> None:
        """Mark the block as the KV of this hash."""
        start, end = block * self._width, (block + 1) * self._width
        words, edge = self._words, array("Q", [digest]) * _EDGE
        words[start : start + _EDGE] = words[end - _EDGE : end] = edge
        for at in range(start, end, _STRIDE):
            words[at] = digest

    def holds(self, block: int, digest: int) -> bool:
        """Whether the block has the marks of this hash, from end to end."""
        start, end = block * self._width, (block + 1) * self._width
        words, edge = self._words, array("Q", [digest]) * _EDGE
        ends = words[start : start + _EDGE] == edge and words[end - _EDGE : end] == edge
        return ends and all(words[at] == digest for at in range(start, end, _STRIDE))
