"""What generates or encodes: each endpoint, said once, for HTTP routes, kept answers and batches alike."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from app.dispatch.generation_base import GenerationBase
from app.messages import Task
from app.openai import chat, classify, completions, embeddings, rerank, score
from app.openai.completion_writer import CompletionWriter
from app.openai.responses import generation as responses
from app.openai.responses.schemas import ResponseRequest
from app.openai.schemas import ChatRequest, CompletionRequest, ModelRequest


class AnswerWriter(Protocol):
    async def whole(self) -> dict[str, Any]:
        """The answer at its end. Raises: what ended it."""


@dataclass(frozen=True)
class Endpoint:
    path: str
    kind: str  # of a kept answer
    schema: type[ModelRequest]
    understand: Callable[..., Awaitable[tuple[Any, Any]]]  # Known, body, explain= → schema and plan. Raises: XylemError
    writer: Callable[[Any, Any], AnswerWriter]  # of a generation that was asked for so
    task: Task = "generate"  # of the models that it takes


@dataclass(frozen=True)
class CompletionEndpoint(Endpoint):
    """One whose answers stream as chunks."""

    writer: Callable[[GenerationBase, Any], CompletionWriter]


CHAT = CompletionEndpoint("/v1/chat/completions", "chat", ChatRequest, chat.understand, chat.writer)
TEXT = CompletionEndpoint("/v1/completions", "text", CompletionRequest, completions.understand, completions.TextWriter)
RESPONSE = Endpoint("/v1/responses", "response", ResponseRequest, responses.understand, responses.ResponseWriter)
EMBEDDINGS = Endpoint(
    "/v1/embeddings",
    "embedding",
    embeddings.EmbeddingRequest,
    embeddings.understand,
    embeddings.EmbeddingWriter,
    "embed",
)
SCORE = Endpoint("/v1/score", "score", score.ScoreRequest, score.understand, score.ScoreWriter, "embed")
RERANK = Endpoint("/v1/rerank", "rerank", rerank.RerankRequest, rerank.understand, rerank.RerankWriter, "embed")
CLASSIFY = Endpoint(
    "/v1/classify", "class", classify.ClassifyRequest, classify.understand, classify.ClassifyWriter, "classify"
)

ENDPOINTS: dict[str, Endpoint] = {
    endpoint.path: endpoint for endpoint in (CHAT, TEXT, RESPONSE, EMBEDDINGS, SCORE, RERANK, CLASSIFY)
}
