"""uvicorn, which says when it begins to drain."""

import asyncio
import socket

import uvicorn


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, leaving: asyncio.Event) -> None:
        """`leaving` is set at the first signal. The app hears of it only when no HTTP request is left."""
        super().__init__(config)
        self._leaving = leaving

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._leaving.set()
        await super().shutdown(sockets)


def both_families(port: int) -> list[socket.socket]:
    """The sockets of `::` at a port, for IPv4 as well where the system can. An event loop's own is for IPv6 only.

    Raises: OSError.
    """
    both = socket.has_dualstack_ipv6()
    return [socket.create_server(("::", port), family=socket.AF_INET6, backlog=2048, dualstack_ipv6=both)]
