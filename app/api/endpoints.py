"""What generates answers: each endpoint by its path, for who has its requests from elsewhere than a connection."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from app.api import chat, completions
from app.api.call import Call
from app.api.plan import Plan
from app.api.responses import endpoint as responses
from app.api.responses.schema import ResponseRequest
from app.api.schemas import Asked, ChatRequest, CompletionRequest
from app.api.serving import Known


class Endpoint(NamedTuple):
    kind: str  # messages.Kept.kind
    schema: type[Asked]
    understand: Callable[[Known, bytes], Awaitable[tuple[Any, Plan]]]  # Raises: XylemError
    whole: Callable[[Call, Any], Awaitable[dict[str, Any]]]  # the answer's body. Raises: what ended it


ENDPOINTS = {
    chat.PATH: Endpoint("chat", ChatRequest, chat.understand, chat.whole),
    completions.PATH: Endpoint("text", CompletionRequest, completions.understand, completions.whole),
    responses.PATH: Endpoint(responses.KIND, ResponseRequest, responses.understand, responses.whole),
}
