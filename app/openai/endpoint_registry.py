"""What generates answers: each endpoint, said once, for HTTP routes, kept answers and batches alike."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from app.dispatch.generation_base import GenerationBase
from app.openai import chat, completions
from app.openai.responses import generation as responses
from app.openai.responses.schemas import ResponseRequest
from app.openai.schemas import Asked, ChatRequest, CompletionRequest
from app.openai.sse_chunks import ChunkWriter


def _no_chunks(_call: GenerationBase, _body: Any) -> ChunkWriter:
    raise NotImplementedError("its streams are not chunks")


@dataclass(frozen=True)
class Endpoint:
    path: str
    kind: str  # of a kept answer
    schema: type[Asked]
    understand: Callable[..., Awaitable[tuple[Any, Any]]]  # Known, body, explain= → schema and plan. Raises: XylemError
    whole: Callable[[Any, Any], Awaitable[dict[str, Any]]]  # a generation, schema → answer. Raises: what ended it
    chunks: Callable[[GenerationBase, Any], ChunkWriter] = _no_chunks  # the writer of a streamed answer


CHAT = Endpoint("/v1/chat/completions", "chat", ChatRequest, chat.understand, chat.whole, chat.chunks)
TEXT = Endpoint(
    "/v1/completions", "text", CompletionRequest, completions.understand, completions.whole, completions.chunks
)
RESPONSE = Endpoint("/v1/responses", "response", ResponseRequest, responses.understand, responses.whole)

ENDPOINTS = {endpoint.path: endpoint for endpoint in (CHAT, TEXT, RESPONSE)}
