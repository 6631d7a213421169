"""A TCP proxy that may stand between a process and its Redis, and that closes, forgets, holds or refuses."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Literal
from urllib.parse import urlsplit

import hiredis

from app.running.loop_thread import LoopThread

Way = Literal["passes", "closes", "holds"]


class Proxy:
    """Passes bytes on until it is told otherwise. On an event loop; `proxied` has one of its own."""

    def __init__(self, url: str, one_way_s: float = 0.0) -> None:
        """`url`: of the Redis behind it. `one_way_s`: how long each byte takes."""
        parts = urlsplit(url)
        self._behind, self._one_way_s = (parts.hostname or "", parts.port or 0), one_way_s
        self._way: Way = "passes"
        self._error = b""
        self._era = 0  # a connection of an earlier one passes nothing on
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0  # that were accepted
        self.unheard = 0  # sends that came on a connection that was forgotten

    async def start(self, port: int = 0) -> str:
        """Its URL."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port, backlog=1024)
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"

    def closes(self) -> None:
        """All connections, and each new one as soon as it is made."""
        self._way = "closes"
        for writer in list(self._writers):
            writer.close()

    def forgets(self) -> None:
        """Forgets what is connected: it hears nothing more, and nothing of it arrives; a new connection is served."""
        self._era += 1

    def holds(self) -> None:
        """Does as `forgets`, and new connections are accepted and hear nothing either."""
        self.forgets()
        self._way = "holds"

    def refuses(self, error: str) -> None:
        """Each command is answered with this error, on all connections, as by a Redis that loads its data."""
        self._error = f"-{error}\r\n".encode()

    def passes(self) -> None:
        """New connections are served again, and commands not refused any more."""
        self._way, self._error = "passes", b""

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._tasks.add(task := asyncio.create_task(self._serve(reader, writer)))
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._way == "holds":
                await asyncio.Event().wait()
            elif self._way == "passes":
                await self._connect(reader, writer)
        finally:
            writer.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            behind_reader, behind = await asyncio.open_connection(*self._behind)
            self._writers |= {writer, behind}
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pass_on(reader, behind, writer))
                    both.create_task(self._pass_on(behind_reader, writer))
            except* OSError:
                pass
            finally:
                self._writers -= {writer, behind}
                behind.close()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, back: asyncio.StreamWriter | None = None
    ) -> None:
        """`back`: of whoever sends commands here."""
        loop, era, commands = asyncio.get_running_loop(), self._era, hiredis.Reader()
        try:
            while data := await reader.read(65536):
                if writer.is_closing():
                    break
                if era != self._era:
                    self.unheard += 1
                    continue
                if self._error and back is not None:
                    commands.feed(data)
                    while commands.gets() is not False:
                        back.write(self._error)
                elif self._one_way_s:
                    loop.call_later(self._one_way_s, writer.write, data)
                else:
                    writer.write(data)
                    await writer.drain()
        finally:
            if era == self._era:
                writer.close()


class Proxied:
    """A proxy on a loop of its own: told from any thread."""

    def __init__(self, url: str, port: int = 0) -> None:
        self._thread = LoopThread("proxy")
        self._proxy = Proxy(url)
        self.url = self._thread.call(self._proxy.start(port))

    def closes(self) -> None:
        self._tell(self._proxy.closes)

    def forgets(self) -> None:
        self._tell(self._proxy.forgets)

    def holds(self) -> None:
        self._tell(self._proxy.holds)

    def refuses(self, error: str) -> None:
        self._tell(partial(self._proxy.refuses, error))

    def passes(self) -> None:
        self._tell(self._proxy.passes)

    @property
    def connections(self) -> int:
        return self._proxy.connections

    def stop(self) -> None:
        self._thread.call(self._proxy.stop())
        self._thread.close()

    def _tell(self, what: Callable[[], None]) -> None:
        async def told() -> None:
            what()

        self._thread.call(told())


@contextmanager
def proxied(url: str) -> Iterator[Proxied]:
    proxy = Proxied(url)
    try:
        yield proxy
    finally:
        proxy.stop()
