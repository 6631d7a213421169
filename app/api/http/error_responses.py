"""Errors as HTTP responses."""

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from redis.exceptions import RedisError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from app.api.http import x_request_id
from app.api.http.error_shape import error_body, http_error_body
from app.errors import NoWorker, RequestError, Saturated, StorageDown, StoreDown, XylemError
from app.store import store_down
from app.telemetry import REFUSALS, logger

log = logger(__name__)


def as_response(exc: XylemError, scope: Scope) -> Response:
    REFUSALS.labels(exc.code).inc()
    # An event that crossed processes has no Retry-After.
    retry_after_s = exc.retry_after_s or (
        1 if isinstance(exc, Saturated | NoWorker | StoreDown | StorageDown) else None
    )
    headers = {**exc.headers} if retry_after_s is None else {**exc.headers, "retry-after": str(retry_after_s)}
    return Response(orjson.dumps(error_body(exc, scope)), exc.status, headers, "application/json")


def log_failure(exc: XylemError, scope: Scope) -> None:
    """Logs errors of the server or an engine. Without the message: an engine's may hold the prompt."""
    if exc.status >= 500:
        log.warning("request_failed", **x_request_id.names(scope), code=exc.code)


def _methods(app: FastAPI, scope: Scope) -> set[str]:
    """Methods of all routes with the request's path."""
    routes = [route for route in app.router.routes if route.matches(scope)[0] is not Match.NONE]
    return {method for route in routes for method in getattr(route, "methods", None) or ()}


def install(app: FastAPI) -> None:
    """Every error leaves the app as such a response, without a traceback."""

    @app.exception_handler(XylemError)
    async def ours(request: Request, exc: XylemError) -> Response:
        log_failure(exc, request.scope)
        return as_response(exc, request.scope)

    @app.exception_handler(RedisError)
    async def stores(request: Request, exc: RedisError) -> Response:
        return await ours(request, store_down(exc))

    @app.exception_handler(RequestValidationError)
    async def fastapis(request: Request, exc: RequestValidationError) -> Response:
        error = exc.errors()[0]
        param = ".".join(map(str, error["loc"][1:]))  # without the word query or path
        return await ours(request, RequestError(f"'{param}': {error['msg']}.", param=param))

    @app.exception_handler(HTTPException)
    async def starlettes(request: Request, exc: HTTPException) -> Response:
        REFUSALS.labels(str(exc.status_code)).inc()
        headers = dict(exc.headers or {})
        if exc.status_code == 405:  # Starlette knows the methods of the path's first route only
            headers["Allow"] = ", ".join(sorted(_methods(app, request.scope)))
        message = f"{request.method} {request.url.path}: {exc.detail}."
        body = http_error_body(exc.status_code, message, request.scope)
        return Response(orjson.dumps(body), exc.status_code, headers, "application/json")

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, exc: Exception) -> Response:
        log.error("request_broke", **x_request_id.names(request.scope), exc_info=exc)
        return as_response(XylemError(), request.scope)
