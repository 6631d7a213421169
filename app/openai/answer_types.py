"""Answers in OpenAI's shapes: refusals, and chats and texts, whole and in chunks."""

from typing import Annotated, Generic, Literal, NotRequired, TypeVar

from typing_extensions import TypedDict

from app.messages.kinds import FinishReason
from app.schemas.answers import absent_means

K = TypeVar("K", bound=str)
ChatFinish = Literal[FinishReason, "tool_calls"]


class RefusalError(TypedDict, closed=True):
    message: str
    type: str
    param: str | None
    code: str | None


class Refusal(TypedDict, closed=True):
    """An error, in OpenAI's shape."""

    error: RefusalError


class Cached(TypedDict, closed=True):
    cached_tokens: int


class Completion(TypedDict, closed=True):
    reasoning_tokens: NotRequired[Annotated[int, absent_means(0)]]  # of models with reasoning
    # Where the request had a `prediction`: how many of its tokens came, and how many did not.
    accepted_prediction_tokens: NotRequired[Annotated[int, absent_means(0)]]
    rejected_prediction_tokens: NotRequired[Annotated[int, absent_means(0)]]


class Usage(TypedDict, closed=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: Cached
    completion_tokens_details: NotRequired[Completion]


class Enveloped(TypedDict):
    id: str
    created: int  # seconds since the epoch
    model: str
    service_tier: NotRequired[Annotated[Literal["default", "flex"], absent_means("default")]]
    # The version of the weights, if they aren't the pool's own; several: joined by `+`.
    system_fingerprint: NotRequired[Annotated[str, absent_means("")]]


class Envelope(Enveloped, Generic[K], closed=True):
    """An answer's first fields; `object` says which one it is."""

    object: K


class Top(TypedDict, closed=True):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TypedDict, closed=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[Top]


class PromptLogprob(TypedDict, closed=True):
    logprob: float
    rank: int | None  # null: the engine doesn't say it
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class ChatLogprobs(TypedDict, closed=True):
    content: list[TokenLogprob]
    refusal: None


class Called(TypedDict, closed=True):
    name: str
    arguments: str  # the JSON of an object, unless the answer was cut off


class ToolCall(TypedDict, closed=True):
    id: str
    type: Literal["function"]
    function: Called


class CallPiece(TypedDict, closed=True):
    name: NotRequired[Annotated[str, absent_means("")]]
    arguments: str


class CallDelta(TypedDict, closed=True):
    """`id`, `type` and the name are only in a call's first delta."""

    index: int
    id: NotRequired[Annotated[str, absent_means("")]]
    type: NotRequired[Annotated[Literal["function"], absent_means("function")]]
    function: CallPiece


class ChatMessage(TypedDict, closed=True):
    role: Literal["assistant"]
    content: str | None
    reasoning_content: NotRequired[str | None]  # or, as the pool says:
    reasoning: NotRequired[str | None]
    refusal: None
    tool_calls: NotRequired[Annotated[list[ToolCall], absent_means([])]]


class ChatDelta(TypedDict, closed=True):
    role: NotRequired[Annotated[Literal["assistant"], absent_means("assistant")]]
    content: NotRequired[Annotated[str, absent_means("")]]
    reasoning_content: NotRequired[Annotated[str, absent_means("")]]  # or, as the pool says:
    reasoning: NotRequired[Annotated[str, absent_means("")]]
    tool_calls: NotRequired[Annotated[list[CallDelta], absent_means([])]]


class ChatChoice(TypedDict, closed=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish
    stop_reason: str | int | None
    token_ids: NotRequired[Annotated[list[int], absent_means([])]]


class ChatChunkChoice(TypedDict, closed=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish | None
    stop_reason: NotRequired[str | int | None]
    token_ids: NotRequired[Annotated[list[int], absent_means([])]]


class StageOutput(TypedDict, closed=True):
    stage: int  # from 1
    model: str
    output: str  # the text, as this stage has left it


class StageDelta(TypedDict, closed=True):
    stage: int
    model: str
    delta: str  # a piece of what this stage is writing


class _ChatAnswer(TypedDict):
    choices: list[ChatChoice]
    prompt_token_ids: NotRequired[Annotated[list[int], absent_means([])]]
    prompt_logprobs: NotRequired[Annotated[PromptLogprobs, absent_means([])]]


class ChatAnswer(_ChatAnswer, closed=True):
    """A chat's answer without its envelope and its usage."""


class _ChatCompletion(Enveloped, _ChatAnswer):
    object: Literal["chat.completion"]
    usage: Usage
    # Of a pipeline: what stages before the last have made.
    stages: NotRequired[Annotated[list[StageOutput], absent_means([])]]


class ChatCompletion(_ChatCompletion, closed=True):
    pass


class StoredChatCompletion(_ChatCompletion, closed=True):
    metadata: dict[str, str]


class StoredChatList(TypedDict, closed=True):
    object: Literal["list"]
    data: list[StoredChatCompletion]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ChatDeleted(TypedDict, closed=True):
    id: str
    object: Literal["chat.completion.deleted"]
    deleted: Literal[True]


class ChatCancelled(TypedDict, closed=True):
    id: str
    object: Literal["chat.completion.cancelled"]


class ChatCompletionChunk(Enveloped, closed=True):
    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    prompt_token_ids: NotRequired[Annotated[list[int], absent_means([])]]  # in the first one
    usage: NotRequired[Usage | None]
    stage: NotRequired[StageOutput | StageDelta]  # of a pipeline: in chunks of their own


class TextLogprobs(TypedDict, closed=True):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class _Text(TypedDict):
    index: int
    text: str
    logprobs: TextLogprobs | None
    token_ids: NotRequired[Annotated[list[int], absent_means([])]]
    # In a stream, with the first of a choice.
    prompt_token_ids: NotRequired[Annotated[list[int], absent_means([])]]


class TextChoice(_Text, closed=True):
    finish_reason: FinishReason
    stop_reason: str | int | None
    prompt_logprobs: NotRequired[Annotated[PromptLogprobs, absent_means([])]]


class TextChunkChoice(_Text, closed=True):
    finish_reason: FinishReason | None
    stop_reason: NotRequired[str | int | None]


class TextAnswer(TypedDict, closed=True):
    """A text's answer without its envelope and its usage."""

    choices: list[TextChoice]


class TextCompletion(Enveloped, closed=True):
    object: Literal["text_completion"]
    choices: list[TextChoice]
    usage: Usage


class TextCompletionChunk(Enveloped, closed=True):
    object: Literal["text_completion"]
    choices: list[TextChunkChoice]
    usage: NotRequired[Usage | None]
