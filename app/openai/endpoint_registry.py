"""What generates answers: each endpoint, said once, for HTTP routes, kept answers and batches alike."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from app.dispatch.generation_base import GenerationBase
from app.openai import chat, completions
from app.openai.completion_writer import CompletionWriter
from app.openai.responses import generation as responses
from app.openai.responses.schemas import ResponseRequest
from app.openai.schemas import Asked, ChatRequest, CompletionRequest


class AnswerWriter(Protocol):
    async def whole(self) -> dict[str, Any]:
        """The answer at its end. Raises: what ended it."""


@dataclass(frozen=True)
class Endpoint:
    path: str
    kind: str  # of a kept answer
    schema: type[Asked]
    understand: Callable[..., Awaitable[tuple[Any, Any]]]  # Known, body, explain= → schema and plan. Raises: XylemError
    writer: Callable[[Any, Any], AnswerWriter]  # of a generation that was asked for so


@dataclass(frozen=True)
class CompletionEndpoint(Endpoint):
    """One whose answers stream as chunks."""

    writer: Callable[[GenerationBase, Any], CompletionWriter]


CHAT = CompletionEndpoint("/v1/chat/completions", "chat", ChatRequest, chat.understand, chat.writer)
TEXT = CompletionEndpoint("/v1/completions", "text", CompletionRequest, completions.understand, completions.TextWriter)
RESPONSE = Endpoint("/v1/responses", "response", ResponseRequest, responses.understand, responses.ResponseWriter)

ENDPOINTS: dict[str, Endpoint] = {endpoint.path: endpoint for endpoint in (CHAT, TEXT, RESPONSE)}
