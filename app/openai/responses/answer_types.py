"""Answers of the Responses API: responses, their items and events, conversations."""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import WithJsonSchema
from typing_extensions import TypedDict

from app.openai.answer_types import TokenLogprob
from app.schemas.answers import absent_means

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]
EventKind = Literal[
    "response.created",
    "response.queued",
    "response.in_progress",
    "response.completed",
    "response.incomplete",
    "response.failed",
]
ItemEventKind = Literal["response.output_item.added", "response.output_item.done"]
PartEventKind = Literal["response.content_part.added", "response.content_part.done"]
CallDeltaKind = Literal["response.function_call_arguments.delta", "response.custom_tool_call_input.delta"]
_TEXT = {"type": "string"}
# An item as the client sent it, or as it was answered.
ListedItem = Annotated[
    dict[str, Any],
    WithJsonSchema({"type": "object", "required": ["id", "type"], "properties": {"id": _TEXT, "type": _TEXT}}),
]


class Part(TypedDict, closed=True):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprob]


class Item(TypedDict, closed=True):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: ItemStatus
    content: list[Part]


class ReasoningPart(TypedDict, closed=True):
    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(TypedDict, closed=True):
    id: str
    type: Literal["reasoning"]
    status: ItemStatus
    summary: list[Any]
    content: list[ReasoningPart]
    encrypted_content: NotRequired[Annotated[str, absent_means("")]]


class CallItem(TypedDict, closed=True):
    id: str
    type: Literal["function_call"]
    status: ItemStatus
    call_id: str
    name: str
    namespace: NotRequired[Annotated[str, absent_means("")]]
    arguments: str


class CustomCallItem(TypedDict, closed=True):
    id: str
    type: Literal["custom_tool_call"]
    status: ItemStatus
    call_id: str
    name: str
    namespace: NotRequired[Annotated[str, absent_means("")]]
    input: str


OutputItem = Item | ReasoningItem | CallItem | CustomCallItem


class Failure(TypedDict, closed=True):
    code: Literal["rate_limit_exceeded", "server_error"]
    message: str


class Incomplete(TypedDict, closed=True):
    reason: Literal["max_output_tokens"]


class Reasoning(TypedDict, closed=True):
    effort: str | None
    summary: str | None


class TextFormat(TypedDict, closed=True):
    format: dict[str, Any]
    verbosity: NotRequired[Annotated[Literal["low", "medium", "high"], absent_means("medium")]]


class OfConversation(TypedDict, closed=True):
    id: str


class InputDetails(TypedDict, closed=True):
    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(TypedDict, closed=True):
    reasoning_tokens: int


class ResponseUsage(TypedDict, closed=True):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseObject(TypedDict, closed=True):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Status
    error: Failure | None
    frequency_penalty: float
    incomplete_details: Incomplete | None
    background: bool
    conversation: OfConversation | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: Reasoning
    safety_identifier: str | None
    service_tier: Literal["default", "flex"]
    store: bool
    temperature: float
    text: TextFormat
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any]
    tools: list[Any]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None
    user: str | None


class _Numbered(TypedDict):
    sequence_number: int


class ResponseEvent(_Numbered, closed=True):
    type: EventKind
    response: ResponseObject


class ItemEvent(_Numbered, closed=True):
    type: ItemEventKind
    output_index: int
    item: OutputItem


class _OfItem(_Numbered):
    item_id: str
    output_index: int


class _OfPart(_OfItem):
    content_index: int


class PartEvent(_OfPart, closed=True):
    type: PartEventKind
    part: Part | ReasoningPart


class DeltaEvent(_OfPart, closed=True):
    type: Literal["response.output_text.delta"]
    delta: str
    logprobs: list[TokenLogprob]


class TextEvent(_OfPart, closed=True):
    type: Literal["response.output_text.done"]
    text: str
    logprobs: list[TokenLogprob]


class ReasoningDelta(_OfPart, closed=True):
    type: Literal["response.reasoning_text.delta"]
    delta: str


class ReasoningText(_OfPart, closed=True):
    type: Literal["response.reasoning_text.done"]
    text: str


class CallDelta(_OfItem, closed=True):
    type: CallDeltaKind
    delta: str


class CallArguments(_OfItem, closed=True):
    type: Literal["response.function_call_arguments.done"]
    name: str
    arguments: str


class CallInput(_OfItem, closed=True):
    type: Literal["response.custom_tool_call_input.done"]
    input: str


class ErrorEvent(_Numbered, closed=True):
    type: Literal["error"]
    code: str
    message: str
    param: str | None


AnyEvent = (
    ResponseEvent
    | ItemEvent
    | PartEvent
    | DeltaEvent
    | TextEvent
    | ReasoningDelta
    | ReasoningText
    | CallDelta
    | CallArguments
    | CallInput
    | ErrorEvent
)


class ResponseDeleted(TypedDict, closed=True):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ItemsPage(TypedDict, closed=True):
    object: Literal["list"]
    data: list[ListedItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokens(TypedDict, closed=True):
    object: Literal["response.input_tokens"]
    input_tokens: int


class Compacted(TypedDict, closed=True):
    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[ListedItem]
    usage: ResponseUsage


class Conversation(TypedDict, closed=True):
    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class ConversationDeleted(TypedDict, closed=True):
    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]
