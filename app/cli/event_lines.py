"""The lines of server-sent events, of which nothing but LF or CR LF is the end.

httpx's own lines also end where a text has U+2028, U+0085 and others, which JSON may have as they are.
"""

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx


def event_lines(response: "httpx.Response") -> Iterator[str]:
    """Raises: httpx.TransportError."""
    lines = _Lines()
    for piece in response.iter_bytes():
        yield from lines.of(piece)


async def event_lines_async(response: "httpx.Response") -> AsyncIterator[str]:
    """Raises: httpx.TransportError."""
    lines = _Lines()
    async for piece in response.aiter_bytes():
        for line in lines.of(piece):
            yield line


class _Lines:
    """Bytes that come in pieces. A line without an end is none: an event has an empty one behind it."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []

    def of(self, piece: bytes) -> list[str]:
        """The lines that end in it."""
        *whole, rest = piece.split(b"\n")
        if not whole:
            self._begun.append(rest)
            return []
        whole[0], self._begun = b"".join([*self._begun, whole[0]]), [rest]
        return [line.removesuffix(b"\r").decode(errors="replace") for line in whole]
