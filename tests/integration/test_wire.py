"""The hot path's connection: which one is closed, and which isn't."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop
from redis.exceptions import ConnectionError as RedisConnectionError

from app.store import Connection, Wire, async_client
from tests.proxy import Proxy

pytestmark = pytest.mark.both_servers

TIMEOUT_S = 2.0
_ONE_WAY_S = 0.01


@asynccontextmanager
async def far_redis(store_url: str) -> AsyncIterator[tuple[Proxy, str]]:
    """The proxy, and its URL."""
    proxy = Proxy(store_url, _ONE_WAY_S)
    url = await proxy.start()
    try:
        yield proxy, url
    finally:
        await asyncio.sleep(5 * _ONE_WAY_S)  # what was closed here is closed at its other end
        await proxy.stop()


async def test_a_connection_that_is_never_idle_stays_open(store_url: str) -> None:
    """New commands come before the last reply has come, for longer than the timeout."""
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
        proxy.forgets()
        tasks = []
        async with asyncio.timeout(30):
            while not connection.is_closed:
                tasks.append(asyncio.create_task(connection.execute([("PING",)])))
                await asyncio.sleep(0.01)
        assert tasks
        for task in tasks:
            with pytest.raises(ConnectionError):
                await task
        await client.aclose()


async def test_one_silent_connection_speaks_for_all_idle_ones_of_the_process(store_url: str) -> None:
    """Each would otherwise cost its next user a time-out of its own: ten seconds, and more, for one request."""
    async with far_redis(store_url) as (proxy, url):
        clients = [async_client(url, socket_timeout=0.5) for _ in range(3)]
        wires = [Wire(client, timeout_s=0.5) for client in clients]

        async def ask_all() -> None:
            """Asks over two connections of each pool, and over all wires."""
            async with asyncio.timeout(30):
                await asyncio.gather(*(client.ping() for client in clients * 2))
                await asyncio.gather(*(wire.execute([("PING",)]) for wire in wires))

        for first in (clients[0].ping, lambda: wires[0].execute([("PING",)])):
            await ask_all()
            proxy.forgets()
            await first()
            assert proxy.unheard > 0
            proxy.unheard = 0
            await ask_all()
            assert proxy.unheard == 0
        connection_count = proxy.connections
        await ask_all()
        assert proxy.connections == connection_count, "what was made anew is trusted"
        for wire, client in zip(wires, clients, strict=True):
            wire.close()
            await client.aclose()


def test_a_connection_that_ends_before_its_commands_are_sent_fails_them(store_url: str) -> None:
    """The commands are sent in the loop's next turn, and nothing may be thrown there: nobody would catch it."""
    loop_errors: list[dict[str, Any]] = []

    async def end() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: loop_errors.append(context))
        client = async_client(store_url)
        connection = Connection()
        await connection.open(client)
        connection.close()  # it hears of that in the next turn
        with pytest.raises(ConnectionError):
            await connection.execute([("PING",)])
        await client.aclose()

    uvloop.run(end())  # the API's and the workers' loop
    assert not loop_errors


URLS = ["redis://127.0.0.1/0", "rediss://127.0.0.1", "sentinel://127.0.0.1/main", "cluster://127.0.0.1"]


@pytest.mark.parametrize("url", [*URLS, "unix:///nowhere"])
def test_a_write_to_a_connection_that_has_just_ended_is_a_connection_error(url: str) -> None:
    """The error is redis-py's, which every caller expects; uvloop's own is RuntimeError, of which workers ended."""

    async def write() -> None:
        server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
        client: Any = async_client(url)
        connection = client.connection_pool.make_connection()
        address = server.sockets[0].getsockname()
        connection._reader, connection._writer = await asyncio.open_connection(*address)
        connection._writer.transport.abort()
        await asyncio.sleep(0.01)
        with pytest.raises(RedisConnectionError, match="closed"):
            await connection.send_command("PING", check_health=False)
        await client.aclose()
        server.close()

    uvloop.run(write())


async def test_a_connection_that_ends_while_it_is_taken_over_is_refused(store_url: str) -> None:
    """redis-py has heard of its end, and the taker never would: its commands would wait for ever."""
    async with far_redis(store_url) as (proxy, url):
        client: Any = async_client(url)
        connection = client.connection_pool.make_connection()
        await connection.connect()
        proxy.closes()
        await connection._reader.read()  # to its end
        with pytest.raises(ConnectionError):
            await Connection().take(connection)
        await client.aclose()
