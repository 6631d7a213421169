"""Bytes of clients' data that are in memory until there is a turn to work on them, or they are taken."""

from collections.abc import Iterator
from contextlib import contextmanager

from app.bounded.turns import CLIENT
from app.errors import Saturated


class HeldBytes:
    """Counts those of one event loop. A client has half of them at most, and no more than is left after that."""

    def __init__(self, most: int, what: str = "Pictures, sounds and videos of yours that are not decoded yet") -> None:
        """`most`: XYLEM_INCOMING_BYTES. `what` they are, for the client."""
        self._most, self._what = most, what
        self._sizes: dict[str, int] = {}

    @contextmanager
    def room(self, size: int) -> Iterator[None]:
        """Holds what the current client has sent, or asked for. Raises: Saturated, if the client holds others."""
        with self.growing() as share:
            share.grow(size)
            yield

    @contextmanager
    def growing(self) -> Iterator["RequestBytes"]:
        """Holds what becomes more and more, for the current client."""
        share = RequestBytes(self, CLIENT.get())
        try:
            yield share
        finally:
            self._add(share.client, -share.size)

    def take(self, client: str, more: int) -> None:
        """Raises: Saturated, if the client holds others."""
        client_bytes = self._sizes.get(client, 0)
        if client_bytes and 2 * (client_bytes + more) + sum(self._sizes.values()) - client_bytes > self._most:
            raise Saturated(
                f"{self._what} have {client_bytes} bytes (XYLEM_INCOMING_BYTES). Try again when others are done."
            )
        self._add(client, more)

    def _add(self, client: str, more: int) -> None:
        if total := self._sizes.get(client, 0) + more:
            self._sizes[client] = total
        else:
            self._sizes.pop(client, None)


class RequestBytes:
    """Bytes that one request holds."""

    def __init__(self, of: HeldBytes, client: str) -> None:
        self._of, self.client, self.size = of, client, 0

    def grow(self, more: int) -> None:
        """Raises: Saturated."""
        self._of.take(self.client, more)
        self.size += more
