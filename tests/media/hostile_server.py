"""An HTTPS server on 127.0.0.1 that says what a case tells it to, and one on 127.0.0.2 that nobody may reach."""

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.certificates import certify

# Writes its answer; the request's head was read. The port is the server's.
Serve = Callable[[asyncio.StreamWriter, int], Awaitable[None]]

OUTER, INNER = "127.0.0.1", "127.0.0.2"


class HostileServer:
    """Runs in a thread of its own, so that it is not held up with the loop that is measured."""

    def __init__(self, folder: Path) -> None:
        self.port = self.silent_port = 0
        self.inner_reached = 0  # connections to the address that is not allowed
        self.routes: dict[str, Serve] = {}
        certify(folder, "DNS:media.test,DNS:rebind.test,DNS:slow.test")
        self.trusting = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(folder / "store.pem", folder / "store.key")
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    @contextmanager
    def running(self) -> Iterator["HostileServer"]:
        self._thread.start()
        try:
            assert self._listening.wait(30)
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(30)
            self._loop.close()

    async def _run(self) -> None:
        outer = await asyncio.start_server(self._answer, OUTER, 0, ssl=self._tls)
        silent = await asyncio.start_server(self._say_nothing, OUTER, 0)
        self.port, self.silent_port = (server.sockets[0].getsockname()[1] for server in (outer, silent))
        inner = await asyncio.start_server(self._reached, INNER, self.port)
        self._listening.set()
        await self._stop.wait()
        for server in (outer, silent, inner):
            server.close()
        # Streams complain about handlers that are cancelled.
        self._loop.set_exception_handler(lambda _loop, _context: None)
        open_ = asyncio.all_tasks() - {asyncio.current_task()}
        for task in open_:
            task.cancel()
        await asyncio.gather(*open_, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split(b" ", 2)[1].decode()
            await self.routes[path.partition("?")[0]](writer, self.port)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has hung up, as it should
        finally:
            writer.close()

    async def _say_nothing(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def _reached(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.inner_reached += 1
        writer.close()


class Names:
    """A resolver. Each name has its answers: one for each time that it is asked, the last one from then on."""

    def __init__(self, answers: dict[str, Sequence[Sequence[str]]]) -> None:
        self._answers = answers
        self.asked: list[str] = []

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        before = self.asked.count(host)
        self.asked.append(host)
        if host == "slow.test":
            await asyncio.sleep(3600)
        if host not in self._answers:
            raise OSError("no such name")
        answers = self._answers[host]
        return answers[min(before, len(answers) - 1)]
