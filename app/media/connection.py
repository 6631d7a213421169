"""A connection to an address that was looked at, and to no other; what comes in is counted. For httpcore."""

import ssl
from collections.abc import Iterable, Sequence
from typing import Any

from httpcore import AnyIOBackend, AsyncNetworkBackend, AsyncNetworkStream, ConnectError

from app.media.refused import Refused

# Bytes of a status line with its headers. Reading 16 KiB of the shortest ones holds the loop for 4 ms.
_HEAD = 16 * 1024
_PIECE = 16 * 1024  # read at once, so that chunks of a byte each hold it no longer


class Inflow:
    """The number of bytes that may still come in. Until the headers are read, `_HEAD`."""

    def __init__(self) -> None:
        self.left = _HEAD

    def allow(self, size: int) -> None:
        """Allows bytes of the body, with all that comes between its chunks."""
        self.left += size


class Pinned(AsyncNetworkBackend):
    """Connects to `addresses`, in turn, whatever it is asked for. The certificate is checked for the host."""

    def __init__(self, addresses: Sequence[str], inflow: Inflow) -> None:
        self._addresses, self._inflow = addresses, inflow
        self._network = AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 (httpcore's signature)
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> AsyncNetworkStream:
        failure: Exception = ConnectError(host)
        for address in self._addresses:
            try:
                stream = await self._network.connect_tcp(address, port, timeout)
            except ConnectError as exc:
                failure = exc
            else:
                return _Counted(stream, self._inflow)
        raise failure


class _Counted(AsyncNetworkStream):
    def __init__(self, stream: AsyncNetworkStream, inflow: Inflow) -> None:
        self._stream, self._inflow = stream, inflow

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 (httpcore's interface)
        if self._inflow.left <= 0:
            raise Refused("its host sends headers that are too long, or too much between the pieces of the body")
        data = await self._stream.read(min(max_bytes, _PIECE, self._inflow.left), timeout)
        self._inflow.left -= len(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 (httpcore's interface)
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 (httpcore's interface)
    ) -> AsyncNetworkStream:
        try:
            tls_stream = await self._stream.start_tls(ssl_context, server_hostname, timeout)
        except BaseException:  # httpcore forgets the socket of a handshake that is cancelled
            await self._stream.aclose()
            raise
        return _Counted(tls_stream, self._inflow)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
