"""Answers made of vectors: embeddings, scores, ranks and classes."""

import builtins
from typing import Literal, NotRequired

from typing_extensions import TypedDict

from app.openai.answer_types import Enveloped


class TokensRead(TypedDict, closed=True):
    prompt_tokens: int
    total_tokens: int


class Embedding(TypedDict, closed=True):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str  # base64 of float32, little-endian


class Embeddings(Enveloped, closed=True):
    object: Literal["list"]
    data: list[Embedding]
    usage: TokensRead


class TypedEmbeddings(TypedDict, closed=True):
    """Vectors: for each form that was asked for, one of each text."""

    float: NotRequired[list[list[builtins.float]]]
    int8: NotRequired[list[list[int]]]
    uint8: NotRequired[list[list[int]]]
    binary: NotRequired[list[list[int]]]
    ubinary: NotRequired[list[list[int]]]
    base64: NotRequired[list[str]]


class ApiVersion(TypedDict, closed=True):
    version: str


class Billed(TypedDict, closed=True):
    input_tokens: int
    image_tokens: int


class InputTokensRead(TypedDict, closed=True):
    input_tokens: int


class CohereMeta(TypedDict, closed=True):
    api_version: ApiVersion
    billed_units: Billed
    tokens: InputTokensRead


class CohereEmbeddings(TypedDict, closed=True):
    id: str
    response_type: Literal["embeddings_by_type"]
    embeddings: TypedEmbeddings
    texts: NotRequired[list[str]]  # the request's own
    meta: CohereMeta


class Score(TypedDict, closed=True):
    object: Literal["score"]
    index: int
    score: float


class Scores(Enveloped, closed=True):
    object: Literal["list"]
    data: list[Score]
    usage: TokensRead


class RankedText(TypedDict, closed=True):
    text: str


class Ranked(TypedDict, closed=True):
    index: int
    relevance_score: float
    document: NotRequired[RankedText]


class Reranked(TypedDict, closed=True):
    id: str
    model: str
    usage: TokensRead
    results: list[Ranked]  # the best first


class Classified(TypedDict, closed=True):
    index: int
    label: str | None
    probs: list[float]
    num_classes: int


class Classes(Enveloped, closed=True):
    object: Literal["list"]
    data: list[Classified]
    usage: TokensRead
