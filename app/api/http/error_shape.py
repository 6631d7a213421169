"""Errors in the shape of the request's API: OpenAI's, Anthropic's or the Open Inference Protocol's by its path."""

import orjson
from starlette.types import Scope

from app.anthropic import error_body as anthropics
from app.anthropic.answer_types import AnthropicRefusal
from app.api.http import x_request_id
from app.errors import XylemError
from app.kserve.answer_types import InferenceRefusal
from app.openai.answer_types import Refusal
from app.openai.error_body import as_body

AnyRefusal = AnthropicRefusal | InferenceRefusal | Refusal
_COHERES = {"/v2/embed", "/v2/rerank"}  # whose errors have OpenAI's shape, as at vLLM
_OWN, _SHARED = "/v1/messages", "/v1/models"


def is_anthropics(scope: Scope) -> bool:
    """Whether a request is for Anthropic's API. On the paths that both APIs have, a header decides."""
    path: str = scope["path"]
    if not path.startswith("/v1/m"):
        return False
    if _is_below(path, _OWN):
        return True
    return _is_below(path, _SHARED) and any(name == b"anthropic-version" for name, _ in scope["headers"])


def _is_below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(f"{prefix}/")


def is_inference(scope: Scope) -> bool:
    """Whether a request is for the Open Inference Protocol."""
    return _is_below(scope["path"], "/v2") and scope["path"] not in _COHERES


def error_body(exc: XylemError, scope: Scope) -> AnyRefusal:
    if is_inference(scope):
        return {"error": exc.message}
    return anthropics.as_body(exc, x_request_id.of(scope)) if is_anthropics(scope) else as_body(exc)


def http_error_body(status: int, message: str, scope: Scope) -> AnyRefusal:
    """The body of an error that is not a XylemError."""
    if is_inference(scope):
        return {"error": message}
    if is_anthropics(scope):
        return anthropics.body_of(status, message, x_request_id.of(scope))
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}


def error_event(exc: XylemError, scope: Scope) -> bytes:
    """The event with which an error ends a stream."""
    event_line = b"event: error\n" if is_anthropics(scope) else b""
    return b"%bdata: %b\n\n" % (event_line, orjson.dumps(error_body(exc, scope)))
