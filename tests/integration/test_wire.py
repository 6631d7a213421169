"""The hot path's connection: which one is closed, and which isn't."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvloop

from app.store import Connection, Wire, async_client

pytestmark = pytest.mark.both_servers

TIMEOUT_S = 2.0
_ONE_WAY_S = 0.01


class FarRedis:
    """A proxy in front of Redis that delays each byte; or that passes no replies on any more."""

    def __init__(self, host: str, port: int) -> None:
        self._redis = host, port
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.answers = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        redis_reader, redis_writer = await asyncio.open_connection(*self._redis)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(reader, redis_writer))
                group.create_task(self._pass_on(redis_reader, writer, replies=True))
        finally:
            for end in (redis_writer, writer):
                end.close()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, replies: bool = False
    ) -> None:
        loop = asyncio.get_running_loop()
        while data := await reader.read(65536):
            if self.answers or not replies:
                loop.call_later(_ONE_WAY_S, writer.write, data)
        writer.close()


@asynccontextmanager
async def far_redis(store_url: str) -> AsyncIterator[tuple[FarRedis, str]]:
    """The proxy, and its URL."""
    url = urlsplit(store_url)
    proxy = FarRedis(url.hostname or "", url.port or 0)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield proxy, f"redis://127.0.0.1:{port}/0"
    finally:
        server.close()
        await asyncio.sleep(5 * _ONE_WAY_S)  # what was closed here is closed at its other end


async def test_a_connection_that_is_never_idle_stays_open(store_url: str) -> None:
    """Before the last reply has come there are always new commands, for longer than the timeout."""
    loop = asyncio.get_running_loop()
    async with far_redis(store_url) as (proxy, url):
        client = async_client(url)
        wire = Wire(client, TIMEOUT_S)
        end = loop.time() + 2.5 * TIMEOUT_S
        replies = 0

        async def ask(delay_s: float) -> None:
            nonlocal replies
            await asyncio.sleep(delay_s)
            while loop.time() < end:
                assert await wire.execute([("ECHO", delay_s)]) == [str(delay_s).encode()]
                replies += 1

        await wire.execute([("PING",)])
        await asyncio.gather(*(ask(n * _ONE_WAY_S / 2) for n in range(4)))
        wire.close()
        await client.aclose()
    assert replies > 20
    assert proxy.connections == 1


async def test_a_redis_that_stops_answering_is_noticed_however_much_it_is_asked(store_url: str) -> None:
    """Only what comes from Redis is a sign of its life."""
    async with far_redis(store_url) as (proxy, url):
        client = async_client(url)
        connection = Connection(timeout_s=0.5)
        await connection.open(client)
        assert await connection.execute([("PING",)]) == [b"PONG"]
        proxy.answers = False
        unanswered = []
        async with asyncio.timeout(30):
            while not connection.is_closed:
                unanswered.append(asyncio.create_task(connection.execute([("PING",)])))
                await asyncio.sleep(0.01)
        assert unanswered
        for task in unanswered:
            with pytest.raises(ConnectionError):
                await task
        await client.aclose()


def test_a_connection_that_ends_before_its_commands_are_sent_fails_them(store_url: str) -> None:
    """They are sent in the loop's next turn, and nothing may be thrown there: nobody would catch it."""
    thrown: list[dict[str, Any]] = []

    async def end() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: thrown.append(context))
        client = async_client(store_url)
        connection = Connection()
        await connection.open(client)
        connection.close()  # it hears of that in the next turn
        with pytest.raises(ConnectionError):
            await connection.execute([("PING",)])
        await client.aclose()

    uvloop.run(end())  # the API's and the workers' loop
    assert not thrown
