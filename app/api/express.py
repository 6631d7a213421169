"""What stands in front of FastAPI: API keys for all endpoints, and those that generate, without middleware.

FastAPI declares those as well, for its documentation; here they are called without what stands around them,
which takes a fifth of a short request's CPU.
"""

from collections.abc import Awaitable, Callable, Mapping

from fastapi import FastAPI
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api import x_request_id
from app.api.body import collect
from app.api.failure import as_response, log_failure
from app.api.state import ApiState
from app.errors import XylemError
from app.telemetry import logger

log = logger(__name__)

Handler = Callable[[ApiState, bytes, Scope, Receive], Awaitable[Response]]


class Express:
    """An ASGI app: `handlers` by path for POST, all else goes to FastAPI; nothing past the keyring."""

    def __init__(self, app: FastAPI, handlers: Mapping[str, Handler]) -> None:
        self._app, self._handlers = app, handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        handler = self._handlers.get(scope["path"]) if scope["method"] == "POST" else None
        try:
            state: ApiState = self._app.state.xylem
            if state.settings.require_keys:
                state.keyring.check(scope)
            if handler is not None:
                raw = await collect(scope, receive, state.settings.max_body)
                response = await handler(state, raw, scope, receive)
                await response(scope, receive, send)
        except XylemError as exc:
            log_failure(exc, scope)
            await as_response(exc)(scope, receive, send)
        except Exception as exc:
            log.error("request_broke", x_request_id=x_request_id.of(scope), exc_info=exc)
            await as_response(XylemError())(scope, receive, send)
        else:
            if handler is None:
                await self._app(scope, receive, send)
