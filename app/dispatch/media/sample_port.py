"""A port of this process's own, where workers collect large samples of its requests, as `app/messages/held.py` says."""

import asyncio
import secrets
from collections.abc import Mapping
from contextlib import suppress

from app.errors import MediaLost
from app.messages.held import GONE, HASH_BYTES, THERE, TOKEN_BYTES, HeldSamples
from app.running.loop_thread import LoopThread
from app.telemetry import logger

log = logger(__name__)

_HEAD_S = 5.0  # for a token, and between two samples
_SEND_S = 60.0  # for one sample
_STRANGERS = 64  # connections that have not shown a token


class SamplePort:
    """Opens with the first samples. It has a thread of its own: sending holds up no token of another answer."""

    def __init__(self, address: str, port: int) -> None:
        """`address`: of this host, for workers. `port`: 0: a free one."""
        self._address, self._port = address, port
        self._opening = asyncio.Lock()
        self._thread: LoopThread | None = None
        self._server: asyncio.Server | None = None
        # By token: the samples, and the connections over which they are being sent.
        self._offers: dict[bytes, Mapping[str, bytes]] = {}
        self._connections: dict[bytes, set[asyncio.StreamWriter]] = {}
        self._strangers = 0

    async def open(self) -> None:
        """Raises: MediaLost, if it can't be opened."""
        async with self._opening:
            if self._server is not None:
                return
            self._thread = self._thread or LoopThread("samples")
            try:
                self._server = await self._thread.run(
                    asyncio.start_server(self._serve, self._address, self._port, limit=2**12)
                )
            except OSError as exc:
                log.error("sample_port_not_opened", address=self._address, port=self._port, error=str(exc))
                raise MediaLost("This replica has no port from which workers could collect large pictures.") from exc

    def offer(self, data: Mapping[str, bytes]) -> HeldSamples:
        """Offers samples, by their hashes, until `withdraw`. The port is open."""
        assert self._server is not None
        token = secrets.token_bytes(TOKEN_BYTES)
        self._offers[token] = data
        port = self._server.sockets[0].getsockname()[1]
        return HeldSamples(self._address, port, token, {name: len(one) for name, one in data.items()})

    def withdraw(self, token: bytes) -> None:
        """Ends also what is just being sent."""
        self._offers.pop(token, None)
        if self._thread is not None:
            self._thread.loop.call_soon_threadsafe(self._abort, token)

    async def close(self) -> None:
        if self._thread is None:
            return
        if self._server is not None:
            self._thread.loop.call_soon_threadsafe(self._server.close)
        for token in [*self._offers]:
            self.withdraw(token)
        await asyncio.to_thread(self._thread.close)

    # On the port's loop.

    def _abort(self, token: bytes) -> None:
        for writer in self._connections.pop(token, ()):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        token = b""
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            token = await self._token(reader)
            if token in self._offers:
                self._connections.setdefault(token, set()).add(writer)
                writer.transport.set_write_buffer_limits(0)
                while await self._sent_one(token, reader, writer):
                    pass
            else:
                writer.write(GONE)
                await writer.drain()
        with suppress(KeyError):
            self._connections[token].discard(writer)
        writer.close()

    async def _token(self, reader: asyncio.StreamReader) -> bytes:
        """Raises: OSError, TimeoutError, IncompleteReadError."""
        if self._strangers >= _STRANGERS:
            raise ConnectionRefusedError
        self._strangers += 1
        try:
            async with asyncio.timeout(_HEAD_S):
                return await reader.readexactly(TOKEN_BYTES)
        finally:
            self._strangers -= 1

    async def _sent_one(self, token: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Sends the sample that is asked for next; False: there is none. Raises: as `_token`."""
        async with asyncio.timeout(_HEAD_S):
            name = (await reader.readexactly(HASH_BYTES)).hex()
        data = self._offers.get(token, {}).get(name)
        if data is None:
            writer.write(GONE)
            await writer.drain()
            return False
        async with asyncio.timeout(_SEND_S):
            writer.write(THERE)
            writer.write(data)
            await writer.drain()
        return True
