"""Collects the large samples of a job from the process that awaits it."""

import asyncio
import socket
from collections.abc import Iterable

from app.errors import MediaLost
from app.messages.held import PIECE, THERE, HeldSamples

_CONNECT_S = 5.0
_RECEIVE_S = 60.0  # one sample


async def collect(offer: HeldSamples, names: Iterable[str]) -> dict[str, bytearray]:
    """The samples of these hashes, over one connection. Raises: MediaLost if one isn't there; OSError."""
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in offer.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        async with asyncio.timeout(_CONNECT_S):
            await loop.sock_connect(sock, (offer.host, offer.port))
            await loop.sock_sendall(sock, offer.token)
        return {name: await _received(sock, name, offer.sizes[name]) for name in names}


async def _received(sock: socket.socket, name: str, size: int) -> bytearray:
    async with asyncio.timeout(_RECEIVE_S):
        await asyncio.get_running_loop().sock_sendall(sock, bytes.fromhex(name))
        if await _exactly(sock, len(THERE)) != THERE:
            raise MediaLost
        return await _exactly(sock, size)


async def _exactly(sock: socket.socket, size: int) -> bytearray:
    """Reads so many bytes. Raises: OSError. A stream of asyncio's would copy all that comes twice."""
    loop, data, at = asyncio.get_running_loop(), bytearray(size), 0
    with memoryview(data) as view:
        while at < size:
            count = await loop.sock_recv_into(sock, view[at : at + PIECE])
            if not count:
                raise ConnectionResetError("the connection ended amid a sample")
            at += count
            await asyncio.sleep(0)  # what is there already comes without a turn of the loop
    return data
