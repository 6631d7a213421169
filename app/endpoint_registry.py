"""The endpoints that generate, encode or paint, each defined once, for HTTP routes, kept answers and batches alike."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from app import endpoints
from app.anthropic import error_body as anthropic_errors
from app.anthropic import messages
from app.anthropic.schemas import MessagesRequest
from app.dispatch.generation_base import GenerationBase
from app.endpoints import EndpointRow
from app.errors import XylemError
from app.messages.events import Delta
from app.openai import (
    chat,
    classify,
    cohere_embeddings,
    completions,
    embeddings,
    error_body,
    images,
    rerank,
    score,
    videos,
)
from app.openai.responses import generation as responses
from app.openai.responses.schemas import ResponseRequest
from app.openai.schemas import ChatRequest, CompletionRequest, ModelRequest


class AnswerWriter(Protocol):
    async def whole(self) -> Mapping[str, Any]:
        """The whole answer. Raises: the error that ended it."""


class StreamWriter(AnswerWriter, Protocol):
    """Writes an answer also as server-sent events."""

    def opening(self, choices: int, /) -> bytes:
        """The events before the first delta."""

    def delta(self, choice: int, d: Delta, /) -> bytes:
        """A delta's events."""

    async def settle(self) -> None:
        """Does work that takes time, after the last delta and before `last`."""

    def last(self) -> bytes:
        """The last events. Raises: XylemError, if the answer has not ended as it should."""


class MakesWriter(Protocol):
    def __call__(self, call: GenerationBase, body: Any) -> StreamWriter:
        """The writer of an answer to `body`, which is as the endpoint's schema."""


@dataclass(frozen=True)
class Endpoint:
    row: EndpointRow
    schema: type[ModelRequest]
    # (Asking, body's bytes) → the body as `schema`, and its plan. Raises: XylemError
    understand: Callable[..., Awaitable[tuple[Any, Any]]]
    writer: Callable[[Any, Any], AnswerWriter]  # (generation, body as `schema`) → its writer
    error_body: Callable[[XylemError], Mapping[str, Any]] = error_body.as_body

    @property
    def path(self) -> str:
        return self.row.path


@dataclass(frozen=True)
class CompletionEndpoint(Endpoint):
    """An endpoint whose answers can be streamed."""

    writer: MakesWriter


CHAT = CompletionEndpoint(endpoints.CHAT, ChatRequest, chat.understand, chat.writer)
TEXT = CompletionEndpoint(endpoints.TEXT, CompletionRequest, completions.understand, completions.TextWriter)
RESPONSE = Endpoint(endpoints.RESPONSE, ResponseRequest, responses.understand, responses.ResponseWriter)
MESSAGE = CompletionEndpoint(
    endpoints.MESSAGE, MessagesRequest, messages.understand, messages.writer, anthropic_errors.as_body
)
EMBEDDINGS = Endpoint(
    endpoints.EMBEDDINGS, embeddings.EmbeddingRequest, embeddings.understand, embeddings.EmbeddingWriter
)
COHERE_EMBEDDINGS = Endpoint(
    endpoints.COHERE_EMBEDDINGS,
    cohere_embeddings.CohereEmbeddingRequest,
    cohere_embeddings.understand,
    cohere_embeddings.CohereEmbeddingWriter,
)
SCORE = Endpoint(endpoints.SCORE, score.ScoreRequest, score.understand, score.ScoreWriter)
RERANK = Endpoint(endpoints.RERANK, rerank.RerankRequest, rerank.understand, rerank.RerankWriter)
CLASSIFY = Endpoint(endpoints.CLASSIFY, classify.ClassifyRequest, classify.understand, classify.ClassifyWriter)
IMAGES = Endpoint(endpoints.IMAGES, images.ImageRequest, images.understand, images.ImageWriter)
VIDEOS = Endpoint(endpoints.VIDEOS, videos.VideoRequest, videos.understand, images.ImageWriter)

# By path: those that lines of batches may name.
ENDPOINTS: dict[str, Endpoint] = {
    endpoint.path: endpoint
    for endpoint in (CHAT, TEXT, RESPONSE, MESSAGE, EMBEDDINGS, COHERE_EMBEDDINGS, SCORE, RERANK, CLASSIFY, IMAGES)
}
