"""Answers of the hostile server."""

import asyncio
import gzip

from tests.media.hostile_server import Serve

_OK = b"HTTP/1.1 200 OK\r\n"


def raw(answer: bytes) -> Serve:
    async def serve(writer: asyncio.StreamWriter, port: int) -> None:
        writer.write(answer)

    return serve


def body(content: bytes, *headers: str) -> Serve:
    lines = "".join(f"{header}\r\n" for header in (f"Content-Length: {len(content)}", *headers))
    return raw(_OK + lines.encode() + b"\r\n" + content)


def headed(*headers: str, content: bytes = b"") -> Serve:
    """An answer with these headers only."""
    return raw(_OK + "".join(f"{header}\r\n" for header in headers).encode() + b"\r\n" + content)


def status(line: str) -> Serve:
    return raw(f"HTTP/1.1 {line}\r\nContent-Length: 0\r\n\r\n".encode())


def redirect(location: str, code: int = 302) -> Serve:
    """`{port}` in it becomes the server's."""

    async def serve(writer: asyncio.StreamWriter, port: int) -> None:
        where = location.replace("{port}", str(port))
        writer.write(f"HTTP/1.1 {code} Found\r\nLocation: {where}\r\nContent-Length: 0\r\n\r\n".encode())

    return serve


def endless(begin: bytes, piece: bytes, pause_s: float = 0.0) -> Serve:
    """An answer that goes on until the client hangs up."""

    async def serve(writer: asyncio.StreamWriter, port: int) -> None:
        writer.write(begin)
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_s)

    return serve


def silent() -> Serve:
    async def serve(writer: asyncio.StreamWriter, port: int) -> None:
        await asyncio.sleep(3600)

    return serve


def slow_redirect(location: str, after_s: float) -> Serve:
    async def serve(writer: asyncio.StreamWriter, port: int) -> None:
        await asyncio.sleep(after_s)
        await redirect(location)(writer, port)

    return serve


def compressed(content: bytes) -> Serve:
    return body(gzip.compress(content), "Content-Encoding: gzip")
