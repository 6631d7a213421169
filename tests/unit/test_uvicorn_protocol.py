"""Direct writes: one chunk per stream and turn of the loop, and no stream is another's trouble; and pipelining."""

import asyncio
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from app.api.http.direct_writer import EXTENSION, DirectWriter
from app.api.http.uvicorn_protocol import MAX_HEAD, MOST_BEHIND, MOST_SMALL, MOST_WAITING, SMALL, DirectProtocol
from tests.plain_connection import PlainConnection


class Transport:
    """A transport like uvloop's: a closed one refuses."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False

    def is_closing(self) -> bool:
        return self.closed

    def write(self, data: bytes) -> None:
        if self.closed:
            raise RuntimeError("the handler is closed")
        self.written.append(data)


def writer() -> tuple[DirectWriter, Transport]:
    transport = Transport()
    state = {"response_started": True, "response_complete": False, "disconnected": False, "chunked_encoding": True}
    flow = MagicMock(FlowControl, write_paused=False)
    return DirectWriter(MagicMock(RequestResponseCycle, transport=transport, flow=flow, **state)), transport


async def test_what_is_written_in_one_turn_is_one_chunk() -> None:
    """Many tokens, one system call; empty ones make no chunk, since an empty chunk ends a response."""
    one, transport = writer()
    for body in (b"abc", b"", b"de"):
        one.write(body)
    two, silent = writer()
    two.write(b"")
    assert transport.written == []
    await asyncio.sleep(0)
    assert transport.written == [b"5\r\nabcde\r\n"]
    assert silent.written == []


async def test_a_connection_that_closed_meanwhile_stops_no_other_stream() -> None:
    """Its client went in the same turn in which a token for it came."""
    gone_writer, closed_transport = writer()
    here, transport = writer()
    for turn in (b"1", b"2"):
        gone_writer.write(turn)
        here.write(turn)
        closed_transport.closed = True
        await asyncio.sleep(0)
    assert transport.written == [b"1\r\n1\r\n", b"1\r\n2\r\n"]


async def test_silence_is_what_neither_way_of_writing_has_broken() -> None:
    """Tokens that end no character break none: their chunks are empty, and nothing leaves."""
    one, _ = writer()
    assert [one.is_silent(), one.is_silent(), one.is_silent()] == [False, True, True]
    one.write(b"abc")
    assert not one.is_silent()  # it is about to leave
    await asyncio.sleep(0)
    assert [one.is_silent(), one.is_silent()] == [False, True]
    one.wrote()  # by `send`
    assert [one.is_silent(), one.is_silent()] == [False, True]
    one.write(b"")
    await asyncio.sleep(0)
    assert one.is_silent()


async def test_what_is_written_between_chunks_is_a_chunk_and_breaks_the_silence() -> None:
    one, transport = writer()
    one.write(b"abc")
    one.write_now(b": waiting")
    await asyncio.sleep(0)
    assert transport.written == [b"9\r\n: waiting\r\n", b"3\r\nabc\r\n"]
    assert not one.is_silent()
    assert one.is_silent()
    one.write_now(b": waiting")
    assert not one.is_silent()


@pytest.mark.parametrize(
    ("field", "value"),
    [("response_started", False), ("response_complete", True), ("disconnected", True), ("write_paused", True)],
)
async def test_nothing_is_written_outside_a_response_or_to_a_client_that_does_not_read(field: str, value: bool) -> None:
    """Such a write would break the connection's next response, or comments would pile up."""
    one, transport = writer()
    cycle: Any = one._cycle
    setattr(cycle.flow if field == "write_paused" else cycle, field, value)
    one.write_now(b": waiting")
    assert transport.written == []


async def test_nothing_is_written_to_a_closed_connection() -> None:
    one, transport = writer()
    transport.closed = True
    one.write_now(b": waiting")
    assert transport.written == []


class Connection(Transport):
    """One whose requests are all answered when `go_on` is set, and not before."""

    def __init__(self, *, answers_at_once: bool = False) -> None:
        super().__init__()
        self.reading = True
        self.go_on, self.over = asyncio.Event(), asyncio.Event()
        if answers_at_once:
            self.go_on.set()
        self.begun: list[str] = []
        self.left: list[str] = []
        self.bodies: list[bytes] = []
        config = Config(self._app, log_config=None, interface="asgi3", proxy_headers=False, ws="none")
        self.protocol = DirectProtocol(config, ServerState(), {})
        self.protocol.connection_made(cast(Any, self))

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, more, came = scope["path"], True, b""
        self.begun.append(path)
        while more:
            message = await receive()
            more, came = message["more_body"], came + message["body"]
        self.bodies.append(came)
        leaving = asyncio.create_task(cast(Any, receive()))
        going_on = asyncio.create_task(self.go_on.wait())
        done_tasks, others = await asyncio.wait((leaving, going_on), return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            task.cancel()
        if leaving in done_tasks:
            self.left.append(path)
            return
        body = path.encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True
        self.over.set()

    async def feed(self, *requests: bytes) -> None:
        for data in requests:
            self.protocol.data_received(data)
            await settled()

    def answers(self) -> list[str]:
        return [data.decode() for data in self.written if data.startswith(b"/")]


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def post(path: str, size: int = 0) -> bytes:
    return b"POST %b HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (path.encode(), size) + b"x" * size


@pytest.mark.parametrize("behind", [[], [post("/1")], [post("/1"), post("/2"), post("/3")], [post("/1", 200_000)]])
@pytest.mark.parametrize("together", [True, False])
async def test_who_has_gone_is_seen_by_what_runs_whatever_waits_behind_it(behind: list[bytes], together: bool) -> None:
    """Reading is never paused for those; and they are not begun."""
    connection = Connection()
    requests = [post("/0"), *behind]
    await connection.feed(*([b"".join(requests)] if together else requests))
    assert connection.reading
    connection.closed = True
    connection.protocol.connection_lost(None)
    await settled()
    assert (connection.begun, connection.left) == (["/0"], ["/0"])


@pytest.mark.parametrize("piece", [5_000, 2**18])
@pytest.mark.parametrize(("size", "most"), [(0, MOST_WAITING), (MOST_BEHIND // 4, 4), (2 * MOST_BEHIND, 0)])
async def test_what_waits_behind_a_request_is_bounded(size: int, most: int, piece: int) -> None:
    """Whole requests are answered in order, and then the connection ends: its client sends the rest again."""
    connection = Connection()
    stream = b"".join(post(f"/{i}", size if i else 0) for i in range(2 * most + 2))
    await connection.feed(*(stream[i : i + piece] for i in range(0, len(stream), piece)))
    assert connection.reading
    assert connection.begun == ["/0"]
    assert len(connection.protocol.pipeline) <= most
    connection.go_on.set()
    await asyncio.wait_for(connection.over.wait(), 10)
    answers = connection.answers()
    assert answers == [f"/{i}" for i in range(len(answers))]
    assert max(1, most - 1) <= len(answers) <= most + 1
    await connection.feed(post("/late"))
    assert connection.begun == answers


@pytest.mark.parametrize("piece", [1, 40, 10_000])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
async def test_a_request_that_asks_for_another_protocol_is_served_without_it(
    protocol: bytes, chunked: bool, piece: int
) -> None:
    """Java's client asks for HTTP/2 with each request. A body that looks like one is none."""
    connection = Connection(answers_at_once=True)
    body = post("/smuggled")
    framing = b"transfer-encoding: chunked" if chunked else b"content-length: %d" % len(body)
    asks = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: %b\r\nHTTP2-Settings: AAMA\r\n%b" % (protocol, framing)
    framed_body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body
    stream = b"".join(b"POST /%d HTTP/1.1\r\n%b\r\n\r\n%b" % (i, asks, framed_body) for i in range(3)) + post("/last")
    await connection.feed(*(stream[i : i + piece] for i in range(0, len(stream), piece)))
    await connection.feed(*[b""] * 4)  # one is begun after the other
    assert connection.answers() == ["/0", "/1", "/2", "/last"]
    assert connection.bodies == [body, body, body, b""]


@pytest.mark.parametrize("head", [
    b"HTTP/1.1\r\nconnection: close, upgrade\r\nupgrade: x", b"HTTP/1.0\r\nconnection: upgrade\r\nupgrade: x",
])  # fmt: skip
async def test_the_last_request_of_a_connection_may_ask_for_another_protocol(head: bytes) -> None:
    """Such requests come from nginx, whose default is HTTP/1.0. Bytes given to the parser again were dropped."""
    connection = Connection(answers_at_once=True)
    await connection.feed(b"POST /0 %b\r\ncontent-length: 4\r\n\r\nbody" % head)
    assert connection.answers() == ["/0"]
    assert connection.bodies == [b"body"]


async def test_trailers_are_no_headers() -> None:
    """Trailers may be in any piece of the request: a proxy that has replaced the header of that name passes them on."""
    heads: list[list[tuple[bytes, bytes]]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        heads.append(list(scope["headers"]))

    body = b"1\r\nx\r\n0\r\nhost: evil\r\nx-api-key: b\r\n\r\n"
    await PlainConnection(app).feed(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n" + body)
    assert heads == [[(b"host", b"a"), (b"transfer-encoding", b"chunked")]]


async def test_many_that_ask_for_another_protocol_are_bounded_as_others_are() -> None:
    connection = Connection()
    await connection.feed(b"GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n" * 5000)
    assert len(connection.protocol.pipeline) == MOST_WAITING


CHUNKED = b"POST /0 HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("answered", [False, True])
async def test_a_body_in_very_many_small_pieces_is_broken_off(answered: bool) -> None:
    """A client refused for lack of a key may send on: a megabyte in single bytes held the event loop for a second."""
    connection = Connection()
    await connection.feed(CHUNKED + b"1\r\nx\r\n" * MOST_SMALL)
    assert not connection.closed
    if answered:
        cycle = connection.protocol.cycle
        await cycle.send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
        await cycle.send({"type": "http.response.body", "body": b"", "more_body": False})
    before = len(connection.written)
    connection.protocol.data_received(b"1\r\nx\r\n")
    replies = connection.written[before:]
    assert connection.closed
    assert [b"400 Bad Request" in data and b"pieces" in data for data in replies] == ([] if answered else [True])


async def test_a_body_in_many_larger_pieces_is_read() -> None:
    connection = Connection(answers_at_once=True)
    size = MOST_SMALL + 1
    await connection.feed(CHUNKED + b"100\r\n%b\r\n" % (b"x" * SMALL) * size + b"0\r\n\r\n", b"", b"")
    assert [len(body) for body in connection.bodies] == [size * SMALL]


async def test_a_connection_is_idle_until_a_request_begins() -> None:
    """An empty line between requests would keep it open for ever."""
    connection = Connection(answers_at_once=True)
    await connection.feed(post("/0"), b"", b"\r\n")
    assert connection.answers() == ["/0"]
    assert connection.protocol.timeout_keep_alive_task is not None
    connection.go_on.clear()
    await connection.feed(post("/1"))
    assert connection.protocol.timeout_keep_alive_task is None


async def _streams(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"one ", "more_body": True})
    direct: DirectWriter = scope["extensions"][EXTENSION]
    direct.write(b"two ")
    await asyncio.sleep(0)
    direct.write_now(b"three ")
    await send({"type": "http.response.body", "body": b"four", "more_body": False})


async def _answers(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"Content-Length", b"3")]})
    await send({"type": "http.response.body", "body": b"one", "more_body": False})


@pytest.mark.parametrize(("app", "body"), [(_streams, b"one two three four"), (_answers, b"one")])
async def test_a_client_of_http_1_0_gets_no_chunks(app: Any, body: bytes) -> None:
    """The client would take their lengths for a part of the body, which ends with its connection."""
    connection = PlainConnection(app)
    answer = await connection.feed(b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
    head, _, received_body = answer.partition(b"\r\n\r\n")
    assert received_body == body
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert connection.closed
    newer = PlainConnection(app)
    answer = await newer.feed(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    assert (b"transfer-encoding: chunked" in answer) == (app is _streams)
    assert not newer.closed


@pytest.mark.parametrize("piece", [MAX_HEAD // 4, 4 * MAX_HEAD])
@pytest.mark.parametrize("more", [-100, 100])
async def test_a_head_is_bounded_however_it_comes(piece: int, more: int) -> None:
    """A head in one piece was never counted. A body that comes along does not count."""
    connection = Connection(answers_at_once=True)
    filler = b"x" * (MAX_HEAD + more - len(b"/0x: content-length1000") - 8)
    raw_request = b"POST /0 HTTP/1.1\r\nx: %b\r\ncontent-length: 1000\r\n\r\n" % filler + b"x" * 1000
    await connection.feed(*(raw_request[i : i + piece] for i in range(0, len(raw_request), piece)), b"", b"")
    assert connection.answers() == (["/0"] if more < 0 else [])
    assert connection.closed == (more > 0)
    assert any(b"431 Request Header" in data for data in connection.written) == (more > 0)
