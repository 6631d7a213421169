"""Answers, for the OpenAPI document only: they are built as dicts and bytes, and not checked by these.

Fields with a default may be absent, which means the default.
"""

import builtins
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from app.pools.schema import Alias
from app.schemas.body import inlined


class Shape(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Refusal(Shape):
    """An error, in OpenAI's shape."""

    class Error(Shape):
        message: str
        type: str
        param: str | None
        code: str | None

    error: Error


class ScrapeTarget(Shape):
    """A target in Prometheus' HTTP service discovery."""

    targets: list[str]  # "host:port"
    labels: dict[str, str]


class Cached(Shape):
    cached_tokens: int


class Thought(Shape):
    reasoning_tokens: int


class Completion(Shape):
    reasoning_tokens: int = 0  # of models with reasoning
    # Where the request had a `prediction`: how many of its tokens came, and how many did not.
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Usage(Shape):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: Cached
    completion_tokens_details: Completion | None = None


class Envelope(Shape):
    id: str
    created: int  # seconds since the epoch
    model: str
    service_tier: Literal["default", "flex"] = "default"
    system_fingerprint: str = ""  # the version of the weights, if they aren't the pool's own; several: joined by `+`


Finish = Literal["stop", "length"]
ChatFinish = Literal["stop", "length", "tool_calls"]


class End(Shape):
    finish_reason: Finish
    stop_reason: str | int | None


class Going(Shape):
    finish_reason: Finish | None
    stop_reason: str | int | None = None


class Top(Shape):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Top):
    top_logprobs: list[Top]


class PromptLogprob(Shape):
    logprob: float
    rank: int | None  # null: the engine doesn't say it
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class ChatLogprobs(Shape):
    content: list[TokenLogprob]
    refusal: None


class Called(Shape):
    name: str
    arguments: str  # the JSON of an object, unless the answer was cut off


class ToolCall(Shape):
    id: str
    type: Literal["function"]
    function: Called


class CallDelta(Shape):
    """`id`, `type` and the name are only in a call's first delta."""

    class Piece(Shape):
        name: str = ""
        arguments: str

    index: int
    id: str = ""
    type: Literal["function"] = "function"
    function: Piece


class ChatMessage(Shape):
    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | None = None  # or, as the pool says:
    reasoning: str | None = None
    refusal: None
    tool_calls: list[ToolCall] = []


class ChatDelta(Shape):
    role: Literal["assistant"] = "assistant"
    content: str = ""
    reasoning_content: str = ""  # or, as the pool says:
    reasoning: str = ""
    tool_calls: list[CallDelta] = []


class ChatChoice(Shape):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish
    stop_reason: str | int | None
    token_ids: list[int] = []


class ChatChunkChoice(Shape):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish | None
    stop_reason: str | int | None = None
    token_ids: list[int] = []


class StageOutput(Shape):
    stage: int  # from 1
    model: str
    output: str  # the text, as this stage has left it


class StageDelta(Shape):
    stage: int
    model: str
    delta: str  # a piece of what this stage is writing


class ChatCompletion(Envelope):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] = []
    prompt_logprobs: PromptLogprobs = []
    stages: list[StageOutput] = []  # of a pipeline: what those before the last have made


class StoredChatCompletion(ChatCompletion):
    metadata: dict[str, str]


class StoredChatList(Shape):
    object: Literal["list"]
    data: list[StoredChatCompletion]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ChatCompletionChunk(Envelope):
    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    prompt_token_ids: list[int] = []  # in the first one
    usage: Usage | None = None
    stage: StageOutput | StageDelta | None = None  # of a pipeline: in chunks of their own


class TextLogprobs(Shape):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class _Text(Shape):
    index: int
    text: str
    logprobs: TextLogprobs | None
    token_ids: list[int] = []
    prompt_token_ids: list[int] = []  # in a stream, with the first of a choice


class TextChoice(_Text, End):
    prompt_logprobs: PromptLogprobs = []


class TextChunkChoice(_Text, Going):
    pass


class TextCompletion(Envelope):
    object: Literal["text_completion"]
    choices: list[TextChoice]
    usage: Usage


class TextCompletionChunk(Envelope):
    object: Literal["text_completion"]
    choices: list[TextChunkChoice]
    usage: Usage | None = None


class TokensRead(Shape):
    prompt_tokens: int
    total_tokens: int


class Embedding(Shape):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str  # base64 of float32, little-endian


class Embeddings(Envelope):
    object: Literal["list"]
    data: list[Embedding]
    usage: TokensRead


class TypedEmbeddings(Shape):
    """Vectors: for each form that was asked for, one of each text."""

    float: list[list[builtins.float]] | None = None
    int8: list[list[int]] | None = None
    uint8: list[list[int]] | None = None
    binary: list[list[int]] | None = None
    ubinary: list[list[int]] | None = None
    base64: list[str] | None = None


class CohereEmbeddings(Shape):
    class Meta(Shape):
        class ApiVersion(Shape):
            version: str

        class Billed(Shape):
            input_tokens: int
            image_tokens: int

        class Tokens(Shape):
            input_tokens: int

        api_version: ApiVersion
        billed_units: Billed
        tokens: Tokens

    id: str
    response_type: Literal["embeddings_by_type"]
    embeddings: TypedEmbeddings
    texts: list[str] | None = None  # the request's own
    meta: Meta


class Score(Shape):
    object: Literal["score"]
    index: int
    score: float


class Scores(Envelope):
    object: Literal["list"]
    data: list[Score]
    usage: TokensRead


class RankedText(Shape):
    text: str


class Ranked(Shape):
    index: int
    relevance_score: float
    document: RankedText | None = None


class Reranked(Shape):
    id: str
    model: str
    usage: TokensRead
    results: list[Ranked]  # the best first


class Classified(Shape):
    index: int
    label: str | None
    probs: list[float]
    num_classes: int


class Classes(Envelope):
    object: Literal["list"]
    data: list[Classified]
    usage: TokensRead


class Capabilities(Shape):
    chat: bool
    tools: bool
    reasoning: bool
    pictures: bool  # in its prompts, as its live workers say
    videos: bool  # the same
    sound: bool  # the same


class EngineAbilities(Shape):
    kv_events: bool
    kv_transfer: bool
    grammars: list[str]  # kinds that it enforces
    ranks: int  # data-parallel ranks of a worker
    seeds: bool  # the same seed gives the same answer
    adapters: int  # LoRA adapters that a worker holds at once


class ServedBy(Shape):
    pool: str
    engine: str
    versions: list[str]  # of its live workers' engines
    workers: int  # live ones
    task: str
    role: str
    endpoints: list[str] | None  # null: all that fit its task
    capabilities: EngineAbilities


class ModelCard(Shape):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int  # tokens
    dialect: str | None  # how it writes reasoning and tool calls
    capabilities: Capabilities
    task: str  # as in the pools file: generate, embed, classify, image, transcribe
    sampling_defaults: dict[str, float]  # of the model's generation_config.json, where a request says nothing
    parent: str | None = None  # of a LoRA adapter: the model that it is made for
    chat_template_kwargs: list[str] | None = None  # the variables that its template knows; not in the list of models
    reasoning_efforts: list[str] | None = None  # that its template tells apart; not in the list of models
    alias: Alias | None = None  # what the name stands for, if it is no model's own
    pipeline: list[str] | None = None  # the models of its stages, if the name is a pipeline's
    pools: list[ServedBy] | None = None  # not in the list of models


class AdapterCard(Shape):
    name: str
    version: int
    model: str  # that it is made for
    source: str
    sha256: str
    pools: list[str]  # that load it; none: all of the model
    min_workers: int
    created: float
    workers: list[str]  # that answer with this version
    failed: dict[str, str]  # by worker: why it could not load it
    missing: dict[str, int]  # by pool: how many fewer than `min_workers` have it, which don't live there, or failed


class AdapterList(Shape):
    data: list[AdapterCard]


class Removed(Shape):
    name: str
    removed: bool


class PrefixInPool(Shape):
    blocks: int  # that it fills
    places: int | None  # caches that have all of it; null: the engines don't tell
    wanted: int  # caches that are to have it


class PrefixCard(Shape):
    id: str
    model: str
    tokens: int
    until: float | None  # s since the epoch; null: it was computed once
    copies: int | None  # how many workers of each pool have it; null: all
    warm: bool | None  # whether all caches that are to have it have it; null: no engine tells
    pools: dict[str, PrefixInPool]


class PrefixList(Shape):
    data: list[PrefixCard]


class PrefixDropped(Shape):
    id: str
    dropped: bool


class ModelList(Shape):
    object: Literal["list"]
    data: list[ModelCard]


def answered(whole: type[Shape], *events: type[Shape], ends: str = "") -> dict[int | str, dict[str, Any]]:
    """An endpoint's `responses`: its whole answer, and the data of its events, of which `ends` is the last.

    Schemas are inlined, since FastAPI has no place for schemas of events that it doesn't write itself.
    """
    schemas = [inlined(event.model_json_schema(mode="serialization")) for event in events]
    json = {"contentMediaType": "application/json", "contentSchema": {"anyOf": schemas}}
    data = {"type": "string"} | ({"anyOf": [json, {"const": ends}]} if ends else json)
    item = {"type": "object", "required": ["data"], "properties": {"data": data}}
    content = {"text/event-stream": {"itemSchema": item}}
    return {200: {"model": whole, "content": content, "description": "Whole, or as server-sent events"}}


class Picture(Shape):
    b64_json: str | None = None  # its file, in base64
    url: str | None = None  # where it is, for XYLEM_MEDIA_KEEP_S
    seed: int
    revised_prompt: str | None = None  # of a pipeline: what its painter was asked for


class PictureEvent(Shape):
    type: str  # image_generation.partial_image or .completed; or image_edit…
    b64_json: str
    created_at: int
    background: Literal["opaque"]
    quality: Literal["auto"]
    output_format: Literal["png", "jpeg", "webp"]
    size: str
    seed: int
    partial_image_index: int | None = None
    revised_prompt: str | None = None  # of a pipeline: what its painter was asked for
    usage: dict[str, Any] | None = None


class Pictures(Shape):
    created: int
    data: list[Picture]
    background: Literal["opaque"]
    output_format: Literal["png", "jpeg", "webp"]
    size: str
    usage: dict[str, Any] | None = None  # of a pipeline: tokens of its texts


class VideoFailure(Shape):
    code: str
    message: str


class Video(Shape):
    id: str
    object: Literal["video"]
    model: str
    status: Literal["queued", "in_progress", "completed", "failed"]
    progress: int  # percent
    created_at: int
    completed_at: int | None
    expires_at: int | None  # when its content will be deleted
    error: VideoFailure | None
    prompt: str
    remixed_from_video_id: None
    seconds: str
    size: str
    seed: int


class VideoList(Shape):
    object: Literal["list"]
    data: list[Video]
    first_id: str | None
    last_id: str | None
    has_more: bool


class VideoDeleted(Shape):
    id: str
    object: Literal["video.deleted"]
    deleted: bool


CHAT = answered(ChatCompletion, ChatCompletionChunk, Refusal, ends="[DONE]")
TEXT = answered(TextCompletion, TextCompletionChunk, Refusal, ends="[DONE]")

VIDEO: dict[int | str, dict[str, Any]] = {200: {"model": Video}}
VIDEO_LIST: dict[int | str, dict[str, Any]] = {200: {"model": VideoList}}
VIDEO_DELETED: dict[int | str, dict[str, Any]] = {200: {"model": VideoDeleted}}
IMAGES = answered(Pictures, PictureEvent, Refusal)

EMBEDDINGS: dict[int | str, dict[str, Any]] = {200: {"model": Embeddings}}
COHERE_EMBEDDINGS: dict[int | str, dict[str, Any]] = {200: {"model": CohereEmbeddings}}
SCORES: dict[int | str, dict[str, Any]] = {200: {"model": Scores}}
RERANKED: dict[int | str, dict[str, Any]] = {200: {"model": Reranked}}
CLASSES: dict[int | str, dict[str, Any]] = {200: {"model": Classes}}
