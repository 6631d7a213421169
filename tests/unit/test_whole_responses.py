"""Bodies taken and answers sent without ASGI messages: a client sees no difference."""

import asyncio
from typing import Any, cast

import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.http.direct_writer import EXTENSION, DirectWriter
from tests.plain_connection import PlainConnection

_MOST = 100_000


class Connection(PlainConnection):
    """A client's connection. `/asgi` is answered by ASGI messages, other paths directly."""

    def __init__(self) -> None:
        super().__init__(self._app)
        self.refused: list[bool] = []
        self.taken: list[bytes | None] = []
        self.received: list[bytes] = []
        self.headers: dict[str, str] = {"x-own": "1"}
        self.failure: Exception | None = None

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        direct: DirectWriter = scope["extensions"][EXTENSION]
        response = Response(b'{"a":1}', 201, self.headers, "application/json")
        self.taken.append(None if scope["path"] == "/asgi" else direct.take_body(_MOST))
        if self.taken[-1] is None:
            message = {"more_body": True}
            while message["more_body"]:
                message = dict(await receive())
                self.received.append(cast(Any, message["body"]))
        try:
            if scope["path"] == "/asgi" or not direct.respond(response):
                self.refused.append(True)
                await response(scope, receive, send)
        except RuntimeError as exc:
            self.failure = exc
            raise


def post(path: str, body: bytes = b"x", version: str = "1.1", more: str = "") -> bytes:
    head = f"POST {path} HTTP/{version}\r\nx-request-id: a\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("more", ["", "connection: close\r\n", "connection: keep-alive\r\n"])
async def test_an_answer_is_the_same_bytes_as_by_asgi(version: str, more: str) -> None:
    """The connection is kept for the next request in both cases, or in neither."""
    ours, theirs = Connection(), Connection()
    assert await ours.feed(post("/", version=version, more=more)) == await theirs.feed(
        post("/asgi", version=version, more=more)
    )
    assert ours.written.endswith(b'\r\n\r\n{"a":1}')
    assert (ours.refused, theirs.refused, ours.closed) == ([], [True], theirs.closed)


async def test_requests_behind_it_are_answered_in_their_turn() -> None:
    connection = Connection()
    await connection.feed(post("/", b"1") + post("/asgi", b"2") + post("/", b"3"))
    assert connection.written.count(b"HTTP/1.1 201") == 3
    assert (connection.taken, connection.received) == ([b"1", None, b"3"], [b"2"])


async def test_a_body_is_taken_if_it_is_here_and_within_the_limit() -> None:
    """Nothing of it is lost otherwise: it comes by `receive`."""
    for body, pieces, is_taken in (
        (b"a" * _MOST, 1, True),
        (b"a" * (_MOST + 1), 1, False),
        (b"abcdef", 2, False),
    ):
        connection, request = Connection(), post("/", body)
        cut = len(request) if pieces == 1 else len(request) - 3
        await connection.feed(request[:cut], *([request[cut:]] if pieces > 1 else []))
        assert connection.taken == [body if is_taken else None]
        assert b"".join(connection.received) == (b"" if is_taken else body)
        assert connection.reading  # or nobody would see that the client leaves
        assert connection.written.count(b"HTTP/1.1 201") == 1


async def test_a_client_that_waits_for_100_continue_gets_it() -> None:
    connection, request = Connection(), post("/", b"abc", more="expect: 100-continue\r\n")
    assert await connection.feed(request[:-3]) == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert (await connection.feed(b"abc")).count(b"HTTP/1.1 201") == 1


async def test_a_client_that_reads_nothing_is_waited_for() -> None:
    connection = Connection()
    connection.protocol.pause_writing()
    assert await connection.feed(post("/")) == b""
    connection.protocol.resume_writing()
    assert (await connection.feed()).count(b"HTTP/1.1 201") == 0
    await asyncio.sleep(0.01)
    assert connection.written.count(b"HTTP/1.1 201") == 1
    assert connection.refused == [True]


async def test_a_header_that_would_become_two_is_refused() -> None:
    connection = Connection()
    connection.headers = {"x-own": "1\r\nset-cookie: a"}
    assert b"set-cookie" not in await connection.feed(post("/"))
    assert isinstance(connection.failure, RuntimeError)
