"""Errors in Anthropic's shape."""

from app.anthropic.answer_types import AnthropicRefusal
from app.errors import XylemError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def as_body(exc: XylemError, request_id: str = "") -> AnthropicRefusal:
    """`request_id`: of the HTTP request, if it is known."""
    body = body_of(exc.status, exc.message, request_id)
    if exc.param == "thread":  # with this, tool runners of Anthropic's package send whole conversations from then on
        body["error"]["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return body


def body_of(status: int, message: str, request_id: str = "") -> AnthropicRefusal:
    kind = _TYPES.get(status, "api_error" if status >= 499 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id or None}
