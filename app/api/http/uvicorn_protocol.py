"""uvicorn's HTTP protocol with bounds, and with a `DirectWriter` in the scope of each request."""

import asyncio
from typing import Any, ClassVar, cast

import httptools
import orjson
from starlette.types import Scope
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from app.api.http import x_request_id
from app.api.http.direct_writer import EXTENSION, DirectWriter
from app.api.http.standing import Awaited, Seen
from app.errors import HeadersTooLarge, RequestError, RequestTimeout, XylemError
from app.openai.error_body import as_body

MAX_HEAD = 64 * 2**10  # bytes of a request before its body: httptools itself has no limit
SMALL, MOST_SMALL = 256, 2**14  # bytes of a small piece of a body, and how many a body may have: each takes 1 µs
MOST_WAITING, MOST_BEHIND = 64, 2**20  # pipelined requests of one connection, and bytes received while any wait


class DirectProtocol(HttpToolsProtocol):
    stopping: ClassVar[asyncio.Event] = asyncio.Event()  # set when the server stops: a stream without an end has to end
    cuts: ClassVar[bool] = False  # the time of answers is over: what waits for their clients ends them

    def shutdown(self) -> None:
        self.stopping.set()
        super().shutdown()

    def cut(self) -> None:
        """Wakes what waits for the client of the running request, once `cuts` is set."""
        if self._running is not None:
            self._running.message_event.set()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins a connection as uvicorn's does, without the two addresses.

        Nothing uses them, and asking for them takes longer than a token.
        """
        self.connections.add(self)
        self.transport = transport
        self.flow = FlowControl(transport)
        self.scheme = "http"
        self._head = 0  # bytes since the last headers or part of a body were complete
        self._running: RequestResponseCycle | None = None  # `cycle` is the last that came: it may wait for this one
        self._behind = 0  # bytes received while requests wait
        self._full = False  # no more is read
        self._small = 0  # pieces of the current body
        self._upgrades = False  # the head that was just parsed asks for another protocol, and is parsed again
        self.received, self._answered = 0, 0  # bytes, and requests
        self.seen: Seen | None = None  # by `Standing`

    def connection_lost(self, exc: Exception | None) -> None:
        """uvicorn notifies only the last request that came, so notify the running one. Those that wait don't begin."""
        running = self._running
        if running is not None:
            running.scope["extensions"].clear()
        if running is not None and running is not self.cycle:
            running.disconnected = True
            running.message_event.set()
        super().connection_lost(exc)
        # They refer to this protocol: see `on_response_complete`.
        self.cycle = self._running = None  # type: ignore[assignment]

    def on_response_complete(self) -> None:
        """Ends a response as uvicorn's does, and parts its scope from its writer.

        A scope has a writer, which has the cycle, which has the scope. Otherwise only the garbage collector would free
        a request, and would take an eighth of a short one's CPU.
        """
        self._answered += 1
        if self._running is not None:
            self._running.scope["extensions"].clear()
        super().on_response_complete()

    def data_received(self, data: bytes) -> None:
        if self._full:
            return
        size = len(data)
        self.received += size
        self._head += size
        self._parse(data)
        if self._head > MAX_HEAD and not self.transport.is_closing():
            self._refuse()
        if not self.pipeline:
            self._behind = 0
            return
        self._behind += len(data)
        if self._behind > MOST_BEHIND:
            self._take_no_more()
        # uvicorn pauses reading, and would see only after the running request that the client has left.
        self.flow.resume_reading()

    def on_message_begin(self) -> None:
        """Here, and not at any byte that comes: an empty line begins no request, and its connection stays idle."""
        self._unset_keepalive_if_required()
        super().on_message_begin()

    def _parse(self, data: bytes) -> None:
        """A request that asks for another protocol, as Java's client does for HTTP/2, is served without it.

        httptools ends it at its head then, and its body would be the next request.
        """
        while not self._full:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserError:
                if self.transport.is_closing():  # broken off here
                    return
                self.send_400_response("Invalid HTTP request received.")
                return
            except httptools.HttpParserUpgrade as exc:
                data = data[exc.args[0] :]
            if self._upgrades:
                self._upgrades = False
                data = self._head_without_upgrade() + data
                self.parser = httptools.HttpRequestParser(self)  # the old one drops all that follows "close"
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
            elif not data:  # behind CONNECT, which is refused
                return

    def _head_without_upgrade(self) -> bytes:
        first = b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        fields = [b"%b: %b" % field for field in self.headers if field[0] != b"upgrade"]
        return b"\r\n".join([first, *fields, b"", b""])

    def on_body(self, body: bytes) -> None:
        """Takes a piece of a body, also one that nobody reads after its request was refused.

        Raises, to end parsing: RequestError.
        """
        self._head = 0
        if len(body) < SMALL:
            self._small += 1
            if self._small > MOST_SMALL:
                error = RequestError(f"The body comes in more than {MOST_SMALL} pieces of less than {SMALL} bytes.")
                self._break_off(error if self.cycle is self._running else None)
                raise error
        if not self._full:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not (self._full or self._upgrades):
            super().on_message_complete()

    def on_headers_complete(self) -> None:
        """Raises, to end parsing: HeadersTooLarge."""
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._upgrades = True
            return
        if self._head > MAX_HEAD and self._length_of_head() > MAX_HEAD:
            self._refuse()
            raise HeadersTooLarge  # which ends parsing
        self._head = self._small = 0
        if len(self.pipeline) >= MOST_WAITING:
            self._take_no_more()
        if self._full:
            return
        super().on_headers_complete()
        if self.cycle is not None and self.cycle.scope is self.scope:
            # uvicorn types an extension as a dict
            self.scope["extensions"] = {EXTENSION: cast(Any, DirectWriter(self.cycle))}
            scope = cast(Scope, self.scope)
            self.cycle.default_headers = x_request_id.identify(scope, self.server_state.default_headers)
        self.headers = []  # of trailers, which are no headers: no proxy may have looked at them

    def _length_of_head(self) -> int:
        """Bytes of the head that has just come, without its method and version."""
        return len(self.url) + sum(len(name) + len(value) + len(b": \r\n") for name, value in self.headers)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app if cycle.scope["http_version"] != "1.0" else _unchunked(app, cycle))

    def _take_no_more(self) -> None:
        """Complete requests are still answered. Then the connection is closed, and the client sends the rest again."""
        self._full = True
        if self.pipeline and self.pipeline[0][0].more_body:
            self.pipeline.popleft()
        last = self.pipeline[0][0] if self.pipeline else self._running
        assert last is not None
        self.cycle = last
        last.keep_alive = False

    def awaited(self) -> Awaited | None:
        """The part of the next or current request that has not come.

        None: all of it has, or it waits for us, not for its client.
        """
        cycle = self.cycle
        if self._full or self.transport.is_closing() or self.flow.read_paused:
            return None
        if cycle is None or (cycle.response_complete and cycle.scope is not self.scope):
            return self._answered, "head"  # of a new connection also if nothing has come
        if not cycle.more_body or cycle.waiting_for_100_continue or cycle is not self._running:
            return None
        return self._answered, "body"

    def time_out(self) -> None:
        """The client stands still."""
        self._break_off(RequestTimeout())

    def _break_off(self, exc: XylemError | None) -> None:
        """Ends the connection. The client is told why, unless there is a response already, or no request."""
        cycle, began = self.cycle, self.received > 0
        if exc is not None and began and (cycle is None or cycle.scope is not self.scope or not cycle.response_started):
            self._send_error(exc)
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # before anything else is written
            cycle.message_event.set()
        self.transport.close()

    def _refuse(self) -> None:
        """Too many headers; or too many trailers after a body, when no error can be sent any more."""
        if self.cycle is None or self.cycle.response_complete:
            self._send_error(HeadersTooLarge(f"The request's headers are over the limit of {MAX_HEAD} bytes."))
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Sends an error as uvicorn's does, in our shape."""
        self._send_error(RequestError(msg))
        self.transport.close()

    def _send_error(self, exc: XylemError) -> None:
        body = orjson.dumps(as_body(exc))
        fields = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n".encode()
        own = x_request_id.given(self._headers_so_far()) or next(x_request_id.new_ids)
        id_field = b"%b: %b\r\n\r\n" % (x_request_id.HEADER, own)
        self.transport.write(STATUS_LINE[exc.status] + fields + id_field + body)

    def _headers_so_far(self) -> list[tuple[bytes, bytes]]:
        """The headers of the request that is being read; empty if the last request has been answered."""
        is_answered = self.cycle is not None and self.cycle.scope is self.scope and self.cycle.response_complete
        return [] if is_answered else getattr(self, "scope", {}).get("headers", [])


def _unchunked(app: ASGI3Application, cycle: RequestResponseCycle) -> ASGI3Application:
    """`app` for a client of HTTP/1.0, which knows no chunks: a body without a length ends with the connection."""

    async def running(scope: Any, receive: Any, send: Any) -> None:
        has_length = False

        async def sending(message: Any) -> None:
            nonlocal has_length
            if message["type"] == "http.response.start":
                has_length = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
                cycle.chunked_encoding = None if has_length else False
            elif not has_length:
                cycle.expected_content_length = len(message.get("body", b""))  # what uvicorn counts as whole
            await send(message)

        await app(scope, receive, sending)

    return running
