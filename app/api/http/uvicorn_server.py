"""uvicorn, which says when it begins to drain."""

import asyncio
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, leaving: asyncio.Event) -> None:
        """`leaving` is set at the first signal. The app hears of it only when no HTTP request is left."""
        super().__init__(config)
        self._leaving = leaving

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """A hang-up, too, unless it is ignored, as after `nohup`."""
        with super().capture_signals():
            before = signal.getsignal(signal.SIGHUP)
            if before is not signal.SIG_IGN:
                signal.signal(signal.SIGHUP, self.handle_exit)
            try:
                yield
            finally:
                signal.signal(signal.SIGHUP, before)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._leaving.set()
        await super().shutdown(sockets)


def both_families(port: int) -> list[socket.socket]:
    """The sockets of `::` at a port, for IPv4 as well where the system can. An event loop's own is for IPv6 only.

    Raises: OSError.
    """
    both = socket.has_dualstack_ipv6()
    return [socket.create_server(("::", port), family=socket.AF_INET6, backlog=2048, dualstack_ipv6=both)]
