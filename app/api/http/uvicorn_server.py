"""uvicorn, which says when it begins to drain, ends connections that stand still, and answers that take too long."""

import asyncio
import math
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import uvicorn

from app.api.http.standing import EVERY_S, Standing
from app.api.http.uvicorn_protocol import DirectProtocol
from app.telemetry import logger

log = logger(__name__)

_ENDING_S = 5.0  # the longest that answers take to end with an error
_TICKS = round(EVERY_S * 10)  # of uvicorn's main loop


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, leaving: asyncio.Event, standing: Standing, drain_s: float) -> None:
        """`leaving` is set at the first signal. The app hears of it only when no HTTP request is left.

        `drain_s`: how long answers may take from then on. Those that take longer end with an error.
        """
        super().__init__(config)
        self._leaving, self._standing, self._drain_s = leaving, standing, drain_s
        config.timeout_graceful_shutdown = math.ceil(drain_s + _ENDING_S)

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS == 0:
            try:
                self._standing.look(cast(Any, self.server_state.connections), time.monotonic())
            except Exception:  # uvicorn's loop would end, and with it the server
                log.exception("connections_not_looked_at")
        return await super().on_tick(counter)

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
        cutting = asyncio.get_running_loop().call_later(self._drain_s, self._cut)
        try:
            await super().shutdown(sockets)
        finally:
            cutting.cancel()

    def _cut(self) -> None:
        DirectProtocol.cuts = True
        for connection in self.server_state.connections:
            cast(DirectProtocol, connection).cut()


def both_families(port: int) -> list[socket.socket]:
    """The sockets of `::` at a port, for IPv4 as well where the system can. An event loop's own is for IPv6 only.

    Raises: OSError.
    """
    both = socket.has_dualstack_ipv6()
    return [socket.create_server(("::", port), family=socket.AF_INET6, backlog=2048, dualstack_ipv6=both)]
