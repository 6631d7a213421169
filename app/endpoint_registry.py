"""What generates answers: each endpoint, said once, for HTTP routes, kept answers and batches alike."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from app.anthropic import error_body as anthropics_errors
from app.anthropic import messages
from app.anthropic.schemas import MessagesRequest
from app.dispatch.generation_base import GenerationBase
from app.errors import XylemError
from app.messages import Delta
from app.openai import chat, completions, error_body
from app.openai.responses import generation as responses
from app.openai.responses.schemas import ResponseRequest
from app.openai.schemas import Asked, ChatRequest, CompletionRequest


class AnswerWriter(Protocol):
    async def whole(self) -> dict[str, Any]:
        """The answer at its end. Raises: what ended it."""


class StreamWriter(AnswerWriter, Protocol):
    """Of server-sent events."""

    def opening(self, choices: int, /) -> bytes:
        """Before the first delta."""

    def delta(self, choice: int, d: Delta, /) -> bytes:
        """Whole events."""

    async def settle(self) -> None:
        """Behind the last delta: what takes time."""

    def last(self) -> bytes:
        """Raises: XylemError, if the answer can't be said to have ended."""


@dataclass(frozen=True)
class Endpoint:
    path: str
    kind: str  # of a kept answer
    schema: type[Asked]
    understand: Callable[..., Awaitable[tuple[Any, Any]]]  # Known, body, explain= → schema and plan. Raises: XylemError
    writer: Callable[[Any, Any], AnswerWriter]  # of a generation that was asked for so
    error_body: Callable[[XylemError], dict[str, Any]] = error_body.as_body


@dataclass(frozen=True)
class CompletionEndpoint(Endpoint):
    """One whose answers stream as they come."""

    writer: Callable[[GenerationBase, Any], StreamWriter]


CHAT = CompletionEndpoint("/v1/chat/completions", "chat", ChatRequest, chat.understand, chat.writer)
TEXT = CompletionEndpoint("/v1/completions", "text", CompletionRequest, completions.understand, completions.TextWriter)
RESPONSE = Endpoint("/v1/responses", "response", ResponseRequest, responses.understand, responses.ResponseWriter)
MESSAGE = CompletionEndpoint(
    "/v1/messages", "message", MessagesRequest, messages.understand, messages.writer, anthropics_errors.as_body
)

ENDPOINTS: dict[str, Endpoint] = {endpoint.path: endpoint for endpoint in (CHAT, TEXT, RESPONSE, MESSAGE)}
