"""Host memory in pages of one size, for bytes that NIXL moves."""

import ctypes
import mmap
from collections.abc import Sequence


class Pages:
    """`size` bytes, rounded down to whole pages. The system gives memory for a page when it is first written."""

    def __init__(self, size: int, page_bytes: int) -> None:
        self.page_bytes = page_bytes
        count = max(1, size // page_bytes)
        self.size = count * page_bytes
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        region = mmap.mmap(-1, self.size, flags=flags)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(region))
        self._view = memoryview(region)
        self._free = [self.address + i * page_bytes for i in reversed(range(count))]

    @property
    def free(self) -> int:
        return len(self._free)

    def needed(self, size: int) -> int:
        """Pages for so many bytes; at least one."""
        return max(1, -(-size // self.page_bytes))

    def take(self, count: int) -> list[int]:
        """Addresses of `count` pages, of which so many have to be free; neighbours where possible."""
        pages = sorted(self._free[-count:])
        del self._free[-count:]
        return pages

    def give_back(self, pages: Sequence[int]) -> None:
        self._free += sorted(pages, reverse=True)

    def write(self, pages: Sequence[int], data: bytes) -> None:
        rest = memoryview(data)
        for page in pages:
            part, rest = rest[: self.page_bytes], rest[self.page_bytes :]
            at = page - self.address
            self._view[at : at + len(part)] = part

    def read(self, pages: Sequence[int], size: int) -> bytes:
        parts = [self._view[page - self.address :][: self.page_bytes] for page in pages]
        return b"".join(parts)[:size]
