"""Fetches what an `https:` URL has, from a public address.

Each name is looked up once, every address of it is checked, and the connection goes to one that was. httpcore, below
httpx, does the rest: it follows no redirects, reads no proxy from the environment and decodes no compression; and each
hop has a connection of its own, so that none is reused for another host. All of it is on an event loop apart: eight
handshakes of TLS at once would hold up the streams of the other one for 8 ms.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpcore

from app.bounded.turns import CLIENT, Turns
from app.errors import Saturated
from app.media.address import is_open
from app.media.connection import Inflow, Pinned
from app.media.limits import MediaLimits
from app.media.refused import Refused, too_large
from app.media.url import Target, parse_url, redirected
from app.running.loop_thread import LoopThread

# The addresses of a name, for connections to that port. Raises: OSError.
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

_AT_ONCE = 64  # fetched by this process; each has at most XYLEM_MEDIA_BYTES in memory
_SMALL = 256  # bytes; a body mostly of smaller pieces would cost much CPU
_SMALL_PIECES = 1024
_REDIRECTS = (301, 302, 303, 307, 308)
_FOREIGN = (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError, OSError)
# The resolver's threads can't be interrupted. These are apart, so that slow names hold up only other names.
_threads = ThreadPoolExecutor(8, thread_name_prefix="media-names")


async def resolve(host: str, port: int) -> Sequence[str]:
    """The host's addresses, by this machine's resolver. Raises: OSError."""
    loop = asyncio.get_running_loop()
    infos = await loop.run_in_executor(_threads, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    return list(dict.fromkeys(str(info[4][0]) for info in infos))


class Fetcher:
    def __init__(self, limits: MediaLimits, resolve: Resolve = resolve, tls: ssl.SSLContext | None = None) -> None:
        """`tls`: whose certificates are trusted. None: the system's, or SSL_CERT_FILE's."""
        self._limits, self._resolve, self._tls = limits, resolve, tls
        self._thread: LoopThread | None = None  # from the first one on
        self._turns = Turns(_AT_ONCE)  # on that thread's event loop

    async def fetch(self, url: str) -> list[bytes]:
        """The body, in pieces. Raises: Refused; Saturated if too many are fetched at once for too long."""
        target = parse_url(url, self._limits.hosts, files=self._limits.folder is not None)
        if self._thread is None:
            self._thread = LoopThread("media-fetching")
        return await self._thread.run(self._fetched(target, CLIENT.get()))

    def close(self) -> None:
        """Ends the thread, when nothing is being fetched."""
        if self._thread is not None:
            self._thread.close()

    async def _fetched(self, target: Target, client: str) -> list[bytes]:
        try:
            async with asyncio.timeout(self._limits.fetch_s):
                await self._turns.take(client)
        except TimeoutError as exc:
            raise Saturated("Too many pictures are being fetched. Try again later.") from exc
        try:
            async with asyncio.timeout(self._limits.fetch_s):
                return await self._followed(target)
        except TimeoutError as exc:
            raise Refused(f"fetching it took longer than {self._limits.fetch_s:g} s (XYLEM_MEDIA_FETCH_S)") from exc
        finally:
            self._turns.end()

    async def _followed(self, target: Target) -> list[bytes]:
        for _ in range(self._limits.redirects + 1):
            result = await self._hop(target)
            if not isinstance(result, str):
                return result
            target = redirected(target, result, self._limits.hosts)
        raise Refused(f"its host redirects more than {self._limits.redirects} times (XYLEM_MEDIA_REDIRECTS)")

    async def _hop(self, target: Target) -> list[bytes] | str:
        """The body, or where a redirect leads. Raises: Refused, TimeoutError."""
        if self._tls is None:
            self._tls = await asyncio.to_thread(_system_tls)
        inflow = Inflow()
        addresses = await self._addresses(target)
        try:
            async with httpcore.AsyncConnectionPool(
                self._tls, max_keepalive_connections=0, network_backend=Pinned(addresses, inflow)
            ) as pool:
                url = httpcore.URL(scheme=b"https", host=target.host, port=target.port, target=target.path)
                times = {"connect": self._limits.connect_s}
                async with pool.stream("GET", url, headers=_headers(target), extensions={"timeout": times}) as answer:
                    return await self._read(answer, inflow)
        except httpcore.ConnectTimeout as exc:
            most = self._limits.connect_s
            raise Refused(f"connecting to its host took longer than {most:g} s (XYLEM_MEDIA_CONNECT_S)") from exc
        except _FOREIGN as exc:
            raise Refused("its host can't be reached, has no valid certificate, or breaks off its answer") from exc

    async def _addresses(self, target: Target) -> Sequence[str]:
        """Raises: Refused, with the same words for a name that leads nowhere as for one that leads inside."""
        try:
            async with asyncio.timeout(self._limits.connect_s):
                addresses = await self._resolve(target.host, target.port)
        except (OSError, UnicodeError) as exc:  # TimeoutError among them
            raise Refused("its host has no public address, or is not known") from exc
        if not addresses or not all(is_open(address, self._limits.networks) for address in addresses):
            raise Refused("its host has no public address, or is not known")
        return addresses

    async def _read(self, answer: httpcore.Response, inflow: Inflow) -> list[bytes] | str:
        headers = {name.lower(): value.decode("latin-1") for name, value in answer.headers}
        if answer.status in _REDIRECTS and b"location" in headers:
            return headers[b"location"]
        if answer.status != 200:
            raise Refused(f"its host answers with status {answer.status}")
        if headers.get(b"content-encoding", "identity").strip().lower() not in ("identity", ""):
            raise Refused("its host compresses it, though it was asked not to")
        if int(headers.get(b"content-length", "0")) > self._limits.size:  # h11 has checked that these are digits
            raise too_large(self._limits.size)
        inflow.allow(2 * self._limits.size)
        pieces: list[bytes] = []
        size = small = 0
        async for piece in answer.aiter_stream():
            pieces.append(piece)
            size += len(piece)
            if size > self._limits.size:
                raise too_large(self._limits.size)
            if len(piece) < _SMALL:
                small += 1
                await asyncio.sleep(0)  # many may be there at once
                if small > _SMALL_PIECES:
                    raise Refused("its host sends it in too small pieces")
        return pieces


def _headers(target: Target) -> list[tuple[str, str]]:
    """Headers that don't tell who asks."""
    return [
        ("Host", target.authority),
        ("Accept", "*/*"),
        ("Accept-Encoding", "identity"),
        ("User-Agent", "xylem"),
        ("Connection", "close"),
    ]


def _system_tls() -> ssl.SSLContext:
    """Reads some hundred certificates."""
    import httpx

    return httpx.create_ssl_context()
