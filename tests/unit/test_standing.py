"""Clients that stand still amid a request are told so and cut off; others are not, however slow we are."""

import asyncio
from typing import Any, cast

import pytest
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from app.api.http.standing import Standing
from tests.plain_connection import PlainConnection

HEAD_S, BODY_S = 20.0, 30.0
HEAD = b"POST /v1/x HTTP/1.1\r\nhost: a\r\n"
WHOLE = HEAD + b"content-length: 3\r\n\r\nabc"


class Connection(PlainConnection):
    """A connection whose requests are read whole, and answered when `go_on` is set."""

    def __init__(self, server: ServerState, address: str = "10.0.0.1", reads: bool = True) -> None:
        super().__init__(self._app, server, address)
        self.reads, self.go_on = reads, asyncio.Event()
        self.seen: list[str] = []

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        if not self.reads:
            await self.go_on.wait()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.seen.append("gone")
                return
            if not message["more_body"]:
                break
        self.seen.append("whole")
        await self.go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})


@pytest.fixture
def server() -> ServerState:
    return ServerState()


class Clock:
    """Looks every two seconds."""

    def __init__(self, server: ServerState, per_address: int = 100) -> None:
        self._server, self._now = server, 0.0
        self._standing = Standing(HEAD_S, BODY_S, per_address)

    def passes(self, seconds: float) -> None:
        end = self._now + seconds
        while self._now < end:
            self._now += 2
            self._standing.look(cast(Any, self._server.connections), self._now)


async def test_half_a_head_gets_408_however_slowly_more_of_it_comes(server: ServerState) -> None:
    one, clock = Connection(server), Clock(server)
    await one.feed(HEAD)
    for number in range(9):
        clock.passes(2)
        await one.feed(b"x-%d: y\r\n" % number)
    assert not one.closed
    clock.passes(6)
    assert one.closed
    assert one.written.startswith(b"HTTP/1.1 408")
    assert b"request_timeout" in one.written


async def test_a_connection_on_which_nothing_ever_comes_is_closed(server: ServerState) -> None:
    """Nothing is written: nobody has asked."""
    one = Connection(server)
    Clock(server).passes(HEAD_S + 4)
    assert (one.closed, one.written) == (True, b"")


@pytest.mark.parametrize("pace", [0, 1000])
async def test_a_body_that_stands_or_trickles_gets_408_and_its_handler_hears_of_it(
    server: ServerState, pace: int
) -> None:
    one, clock = Connection(server), Clock(server)
    await one.feed(HEAD + b"content-length: 9000000\r\n\r\n" + b"x" * 50_000)
    for _ in range(round(BODY_S / 2 + 2)):
        clock.passes(2)
        await one.feed(b"x" * pace)
    assert one.closed
    assert one.written.startswith(b"HTTP/1.1 408")
    await one.feed(b"")
    assert one.seen == ["gone"]


async def test_a_body_that_comes_slowly_and_whole_is_taken(server: ServerState) -> None:
    one, clock = Connection(server), Clock(server)
    one.go_on.set()
    await one.feed(HEAD + b"content-length: 400000\r\n\r\n")
    for _ in range(100):
        await one.feed(b"x" * 4000)
        clock.passes(2)
    assert one.seen == ["whole"]
    assert one.written.startswith(b"HTTP/1.1 200")


async def test_who_waits_for_us_is_not_timed_out(server: ServerState) -> None:
    """A wait may be for an answer, a handler that reads nothing yet, the leave to send a body, or the next request."""
    answered_connection, unread = Connection(server), Connection(server, reads=False)
    leave, idle = Connection(server, reads=False), Connection(server)
    await answered_connection.feed(WHOLE)
    await unread.feed(HEAD + b"content-length: 900000\r\n\r\n" + b"x" * 100_000)
    await leave.feed(HEAD + b"expect: 100-continue\r\ncontent-length: 900\r\n\r\n")
    idle.go_on.set()
    await idle.feed(WHOLE)
    Clock(server).passes(300)
    assert not any(one.closed for one in (answered_connection, unread, leave, idle))
    await idle.feed(HEAD)
    Clock(server).passes(HEAD_S + 4)
    assert idle.closed
    assert not answered_connection.closed


async def test_half_a_request_behind_one_that_is_answered_does_not_end_that(server: ServerState) -> None:
    one, clock = Connection(server), Clock(server)
    await one.feed(WHOLE + HEAD)
    clock.passes(100)
    assert not one.closed
    one.go_on.set()
    await one.feed(b"x: y\r\n")
    assert b"200 OK" in one.written
    clock.passes(HEAD_S + 4)
    assert one.closed


async def test_one_address_has_so_many_unfinished_requests_and_the_oldest_go(server: ServerState) -> None:
    clock = Clock(server, per_address=3)
    other = Connection(server, "10.0.0.2")
    await other.feed(HEAD)
    many: list[Connection] = []
    for _ in range(5):
        many.append(Connection(server))
        await many[-1].feed(HEAD)
        clock.passes(2)
    assert [one.closed for one in many] == [True, True, False, False, False]
    assert not other.closed
