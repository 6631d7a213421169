"""The endpoints that generate, encode or paint, each defined once, for HTTP routes, kept answers and batches alike."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from app.anthropic import error_body as anthropic_errors
from app.anthropic import messages
from app.anthropic.schemas import MessagesRequest
from app.dispatch.generation_base import GenerationBase
from app.errors import XylemError
from app.messages.events import Delta
from app.messages.kinds import Task
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
from app.pools.schema import EndpointName


class AnswerWriter(Protocol):
    async def whole(self) -> dict[str, Any]:
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


@dataclass(frozen=True)
class Endpoint:
    path: str
    kind: str  # its name in kept answers
    schema: type[ModelRequest]
    # (Deployment, body's bytes, explain=) → the body as `schema`, and its plan. Raises: XylemError
    understand: Callable[..., Awaitable[tuple[Any, Any]]]
    writer: Callable[[Any, Any], AnswerWriter]  # (generation, body as `schema`) → its writer
    task: Task = "generate"  # only models of this task may be named
    error_body: Callable[[XylemError], dict[str, Any]] = error_body.as_body
    name: EndpointName = field(kw_only=True)  # as in `endpoints` of a pool


@dataclass(frozen=True)
class CompletionEndpoint(Endpoint):
    """An endpoint whose answers can be streamed."""

    writer: Callable[[GenerationBase, Any], StreamWriter]


CHAT = CompletionEndpoint("/v1/chat/completions", "chat", ChatRequest, chat.understand, chat.writer, name="chat")
TEXT = CompletionEndpoint(
    "/v1/completions",
    "text",
    CompletionRequest,
    completions.understand,
    completions.TextWriter,
    name="completions",
)
RESPONSE = Endpoint(
    "/v1/responses",
    "response",
    ResponseRequest,
    responses.understand,
    responses.ResponseWriter,
    name="responses",
)
MESSAGE = CompletionEndpoint(
    "/v1/messages",
    "message",
    MessagesRequest,
    messages.understand,
    messages.writer,
    error_body=anthropic_errors.as_body,
    name="messages",
)
EMBEDDINGS = Endpoint(
    "/v1/embeddings",
    "embedding",
    embeddings.EmbeddingRequest,
    embeddings.understand,
    embeddings.EmbeddingWriter,
    task="embed",
    name="embeddings",
)
COHERE_EMBEDDINGS = Endpoint(
    "/v2/embed",
    "cohere_embedding",
    cohere_embeddings.CohereEmbeddingRequest,
    cohere_embeddings.understand,
    cohere_embeddings.CohereEmbeddingWriter,
    task="embed",
    name="embeddings",
)
SCORE = Endpoint(
    "/v1/score", "score", score.ScoreRequest, score.understand, score.ScoreWriter, task="embed", name="score"
)
RERANK = Endpoint(
    "/v1/rerank", "rerank", rerank.RerankRequest, rerank.understand, rerank.RerankWriter, task="embed", name="rerank"
)
CLASSIFY = Endpoint(
    "/v1/classify",
    "class",
    classify.ClassifyRequest,
    classify.understand,
    classify.ClassifyWriter,
    task="classify",
    name="classify",
)
IMAGES = Endpoint(
    "/v1/images/generations",
    "image",
    images.ImageRequest,
    images.understand,
    images.ImageWriter,
    task="image",
    name="images",
)

SAME_AS = {"/score": SCORE, "/rerank": RERANK, "/v2/rerank": RERANK}  # vLLM's other paths

# A job, which is always kept; no line of a batch.
VIDEOS = Endpoint(
    "/v1/videos", "video", videos.VideoRequest, videos.understand, images.ImageWriter, task="image", name="videos"
)

ENDPOINTS: dict[str, Endpoint] = {
    endpoint.path: endpoint
    for endpoint in (
        CHAT, TEXT, RESPONSE, MESSAGE, EMBEDDINGS, COHERE_EMBEDDINGS, SCORE, RERANK, CLASSIFY, IMAGES,
    )
}  # fmt: skip
