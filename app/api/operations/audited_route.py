"""Routes whose requests are in the audit log: all of admins, other than those that only read."""

from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from app.api.intake.request_body import SHORT_BODY
from app.api.state import state_of
from app.errors import XylemError, outcome_of
from app.tenants import audit

_READS = {"GET", "HEAD", "OPTIONS"}


class AuditedRoute(APIRoute):
    """A route that notes what a request has asked for, after it was done or has failed.

    A request without the right is not noted.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if (self.methods or set()) <= _READS:
            return handle

        async def noted(request: Request) -> Response:
            outcome = XylemError.code
            try:
                response = await handle(request)
                outcome = outcome_of(None)
            except XylemError as exc:
                outcome = exc.code
                raise
            finally:
                if audit.WHO in request.scope and audit.NOTED not in request.scope:
                    await audit.note(
                        state_of(request),
                        request,
                        f"{request.method} {self.path}",
                        _target(request),
                        _asked(request),
                        outcome=outcome,
                    )
            return response

        return noted


def _target(request: Request) -> str:
    return "/".join(map(str, request.path_params.values()))


def _asked(request: Request) -> dict[str, Any]:
    """The body, where it has no prompt."""
    try:
        body = orjson.loads(request.scope.get(SHORT_BODY) or b"{}")
    except orjson.JSONDecodeError:
        return {}
    return body if isinstance(body, dict) else {}
