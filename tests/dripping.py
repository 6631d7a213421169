"""A server whose answer never ends, and is never silent for long."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


@asynccontextmanager
async def dripping(begin: bytes, drop: bytes) -> AsyncIterator[tuple[str, asyncio.Queue[None]]]:
    """Its address, and who has left. It answers `begin`, then `drop` after `drop`."""
    departures = asyncio.Queue[None]()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(begin)
        while not writer.is_closing():
            writer.write(drop)
            await asyncio.sleep(0.02)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        await departures.put(None)

    async with await asyncio.start_server(drip, "127.0.0.1", 0) as server, asyncio.timeout(20):
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", departures
