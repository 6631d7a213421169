"""Bytes of clients' data that are in memory until there is a turn to work on them."""

from collections.abc import Iterator
from contextlib import contextmanager

from app.bounded.turns import CLIENT
from app.errors import Saturated


class HeldBytes:
    """Counts those of one event loop. A client has half of them at most, and no more than is left after that."""

    def __init__(self, most: int) -> None:
        """`most`: XYLEM_INCOMING_BYTES."""
        self._most = most
        self._sizes: dict[str, int] = {}

    @contextmanager
    def room(self, size: int) -> Iterator[None]:
        """Holds what the current client has sent, or named. Raises: Saturated, if the client holds others."""
        client = CLIENT.get()
        held = self._sizes.get(client, 0)
        if held and 2 * (held + size) + sum(self._sizes.values()) - held > self._most:
            raise Saturated(
                f"Pictures, sounds and videos of yours that are not decoded yet have {held} bytes "
                "(XYLEM_INCOMING_BYTES). Try again when others are done."
            )
        self._sizes[client] = held + size
        try:
            yield
        finally:
            self._sizes[client] -= size
            if not self._sizes[client]:
                del self._sizes[client]
