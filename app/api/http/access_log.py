"""The access log: a line after each request's end."""

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.http import x_request_id
from app.api.http.direct_writer import EXTENSION
from app.telemetry import logger

log = logger(__name__)

_LONGEST = 200  # characters of a path that is no route's


class AccessLog:
    """An ASGI app that passes all on to another one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope.get("extensions", {}).pop(EXTENSION, None)  # what writes past ASGI would not be seen
        began, status, size, whole = time.perf_counter(), 0, 0, False

        async def noting(message: Message) -> None:
            nonlocal status, size, whole
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                size += len(message.get("body", b""))
                whole = not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            route = scope.get("route")
            log.info(
                "request_ended",
                method=scope["method"],
                route=getattr(route, "path", scope["path"][:_LONGEST]),
                status=status,
                seconds=round(time.perf_counter() - began, 4),
                bytes=size,
                whole=whole,  # else the client left, or the answer broke off
                **x_request_id.names(scope),
            )
