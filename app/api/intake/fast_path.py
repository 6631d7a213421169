"""The ASGI app in front of FastAPI: checks of all requests, and the endpoints that generate.

FastAPI declares these as well, for the documentation. Here they are called without FastAPI's own layers, which take a
fifth of a short request's CPU.
"""

from collections.abc import Awaitable, Callable, Container, Mapping

from fastapi import FastAPI
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from app.api.http import request_trace, x_request_id
from app.api.http.direct_writer import EXTENSION, DirectWriter
from app.api.http.error_responses import as_response, log_failure
from app.api.http.error_shape import is_anthropics
from app.api.http.front import Front
from app.api.http.incoming import Share, put, share_of
from app.api.http.origin import Allowed, Headers, admit, check_body, granted, preflight
from app.api.intake.request_body import collect
from app.api.state import ApiState
from app.endpoints import LARGE
from app.errors import XylemError
from app.telemetry import logger
from app.tenants.admission import Admission, admitted

log = logger(__name__)

_FIGURES = len(str(LARGE))

Handler = Callable[[ApiState, bytes, Scope, Receive], Awaitable[Response]]


class FastPath:
    """An ASGI app: `handlers`, by path, take POST; FastAPI takes all else. `allowed` and API keys are checked first.

    `traced`: the paths whose POSTs make answers. `front`: what is known of proxies.
    """

    def __init__(
        self,
        app: FastAPI,
        handlers: Mapping[str, Handler],
        origins: Allowed,
        traced_paths: Container[str] = (),
        front: Front | None = None,
    ) -> None:
        self._app, self._handlers, self._allowed, self._traced, self._front = (
            app,
            handlers,
            origins,
            traced_paths,
            front,
        )
        # The paths whose POSTs `_normalised` leaves as they are.
        self._as_sent = {path for path in handlers if not is_anthropics({"path": path, "headers": ()})}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        plain = send
        if scope["path"] not in self._as_sent or scope["method"] != "POST" or self._front is not None:
            scope, send = _normalised(scope, send, self._front)
        handler = self._handlers.get(scope["path"]) if scope["method"] == "POST" else None
        headers: Headers = dict(scope["headers"])
        admission: Admission | None = None
        try:
            origin = admit(self._allowed, headers)
            send = _adding(granted(origin), send) if origin else send
            if origin and (cors_headers := preflight(scope["method"], headers)):
                await Response(status_code=204, headers=cors_headers)(scope, receive, send)
                return
            state: ApiState = self._app.state.xylem
            if state.settings.require_keys:
                await state.api_keys.admit(scope)
                admission = state.begin_admission(scope)
            if state.tracer is not None:
                request_trace.begin(state.tracer, self._traced, scope, headers)
            check_body(scope["method"], scope["path"], headers)
            if (length := _large(headers)) is not None:
                await _begin_large(state, scope, length, admission)
            if handler is not None:
                raw = await _body(state, scope, receive, is_large=length is not None)
                await _respond(await handler(state, raw, scope, receive), scope, receive, send, adds=send is not plain)
        except Exception as exc:  # noqa: BLE001 (logged there)
            await _refuse(exc, scope, receive, send)
        else:
            if handler is None:
                await self._app(scope, receive, request_trace.noting(scope, send))
                request_trace.end(scope)
        finally:
            if admission is not None or share_of(scope) is not None:
                await _close(scope, admission)


async def _close(scope: Scope, admission: Admission | None) -> None:
    if (share := share_of(scope)) is not None:
        share.close()
    if admission is not None:
        await admission.close()


async def _body(state: ApiState, scope: Scope, receive: Receive, *, is_large: bool) -> bytes:
    """The body, as it is here if all of it is. Raises: as `collect`."""
    direct: DirectWriter | None = scope.get("extensions", {}).get(EXTENSION)
    raw = None if direct is None else direct.take_body(state.settings.max_body)
    if raw is None:
        raw = await collect(scope, receive, state.settings.max_body)
    elif is_large and len(raw) > LARGE:
        await admitted()
        if (share := share_of(scope)) is not None:
            share.close()
    if state.tracer is not None:
        request_trace.body_read(scope)
    return raw


async def _respond(response: Response, scope: Scope, receive: Receive, send: Send, *, adds: bool) -> None:
    """Sends it without ASGI messages if it is no stream, and `send` adds nothing to it. `adds`: it does."""
    direct: DirectWriter | None = scope.get("extensions", {}).get(EXTENSION)
    whole = direct is not None and type(response) is Response and not adds and direct.respond(response)
    if not whole:
        await response(scope, receive, send)
    request_trace.end(scope, response.status_code)


async def _refuse(exc: Exception, scope: Scope, receive: Receive, send: Send) -> None:
    error = exc if isinstance(exc, XylemError) else XylemError()
    if error is exc:
        log_failure(error, scope)
    else:
        log.error("request_broke", **x_request_id.names(scope), exc_info=exc)
    request_trace.end(scope, error.status, error.code)
    await as_response(error, scope)(scope, receive, send)


def _large(headers: Headers) -> int | None:
    """Bytes of a body over `LARGE`; 0: it may be one, and the head doesn't say. None: it is none."""
    if (length := headers.get(b"content-length")) is None:
        return 0 if b"transfer-encoding" in headers else None
    return int(length) if len(length) >= _FIGURES and int(length) > LARGE else None


async def _begin_large(state: ApiState, scope: Scope, length: int, admission: Admission | None) -> None:
    """Admits a request and takes its body's share, before the body is read. `length`: as `_large` has it.

    Raises: BodyTooLarge, RateLimited, BudgetUsed, StoreDown, Saturated.
    """
    if admission is not None and length:
        await admission.take()
    share = Share(state.incoming, state.api_keys.client(scope))
    share.grow(length)
    put(scope, share)


def _normalised(scope: Scope, send: Send, front: Front | None) -> tuple[Scope, Send]:
    """HEAD as GET, the path without a slash at its end, all as if no proxy were in front."""
    if front is not None:
        front.read(scope)
    if scope["method"] == "HEAD":
        scope, send = {**scope, "method": "GET"}, _head_of(send)
    if scope["path"].endswith("/") and scope["path"] != "/" and not _ends_a_name(scope):
        scope["path"] = scope["path"][:-1]
    return scope, _with_request_id(scope, send) if is_anthropics(scope) else send


def _ends_a_name(scope: Scope) -> bool:
    """Whether the slash at the path's end is encoded, and so part of a name: without it, another one is meant."""
    # Some servers have no raw path, and some have the query in it.
    raw: bytes = scope.get("raw_path") or b"/"
    return not raw.partition(b"?")[0].endswith(b"/")


def _adding(headers: list[tuple[bytes, bytes]], send: Send) -> Send:
    """`send` that adds these headers to the response."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *headers]}
        await send(message)

    return sending


def _with_request_id(scope: Scope, send: Send) -> Send:
    """`send` that adds the response's id as `request-id`, where Anthropic's clients look for it."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = (b"request-id", x_request_id.of(scope).encode())
            message = {**message, "headers": [*message.get("headers", ()), own]}
        await send(message)

    return sending


def _head_of(send: Send) -> Send:
    """`send` that sends only the head of a response. To the handler, the client seems gone from then on."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body"})

    return sending
