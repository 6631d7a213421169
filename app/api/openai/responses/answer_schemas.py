"""Answers of the Responses API, for the OpenAPI document only."""

from typing import Any, Literal

from app.api.http.answer_schemas import Shape, TokenLogprob, answered
from app.openai.responses.response_object import Status

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class Part(Shape):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprob]


class Item(Shape):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: ItemStatus
    content: list[Part]


class ReasoningPart(Shape):
    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(Shape):
    id: str
    type: Literal["reasoning"]
    status: ItemStatus
    summary: list[Any]
    content: list[ReasoningPart]
    encrypted_content: str = ""


class CallItem(Shape):
    id: str
    type: Literal["function_call"]
    status: ItemStatus
    call_id: str
    name: str
    namespace: str = ""
    arguments: str


class CustomCallItem(Shape):
    id: str
    type: Literal["custom_tool_call"]
    status: ItemStatus
    call_id: str
    name: str
    namespace: str = ""
    input: str


OutputItem = Item | ReasoningItem | CallItem | CustomCallItem


class Failure(Shape):
    code: Literal["rate_limit_exceeded", "server_error"]
    message: str


class Incomplete(Shape):
    reason: Literal["max_output_tokens"]


class Reasoning(Shape):
    effort: str | None
    summary: str | None


class TextFormat(Shape):
    format: dict[str, Any]
    verbosity: Literal["low", "medium", "high"] = "medium"


class OfConversation(Shape):
    id: str


class InputDetails(Shape):
    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(Shape):
    reasoning_tokens: int


class ResponseUsage(Shape):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseObject(Shape):
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


class Numbered(Shape):
    sequence_number: int


class ResponseEvent(Numbered):
    type: Literal[
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    response: ResponseObject


class ItemEvent(Numbered):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class OfItem(Numbered):
    item_id: str
    output_index: int


class OfPart(OfItem):
    content_index: int


class PartEvent(OfPart):
    type: Literal["response.content_part.added", "response.content_part.done"]
    part: Part | ReasoningPart


class DeltaEvent(OfPart):
    type: Literal["response.output_text.delta"]
    delta: str
    logprobs: list[TokenLogprob]


class TextEvent(OfPart):
    type: Literal["response.output_text.done"]
    text: str
    logprobs: list[TokenLogprob]


class ReasoningDelta(OfPart):
    type: Literal["response.reasoning_text.delta"]
    delta: str


class ReasoningText(OfPart):
    type: Literal["response.reasoning_text.done"]
    text: str


class CallDelta(OfItem):
    type: Literal["response.function_call_arguments.delta", "response.custom_tool_call_input.delta"]
    delta: str


class CallArguments(OfItem):
    type: Literal["response.function_call_arguments.done"]
    name: str
    arguments: str


class CallInput(OfItem):
    type: Literal["response.custom_tool_call_input.done"]
    input: str


class ErrorEvent(Numbered):
    type: Literal["error"]
    code: str
    message: str
    param: str | None


EVENTS = (
    *(ResponseEvent, ItemEvent, PartEvent, DeltaEvent, TextEvent, ReasoningDelta, ReasoningText),
    *(CallDelta, CallArguments, CallInput, ErrorEvent),
)
RESPONSE = answered(ResponseObject, *EVENTS)
WHOLE: dict[int | str, dict[str, Any]] = {200: {"model": ResponseObject}}


class ItemsPage(Shape):
    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokens(Shape):
    object: Literal["response.input_tokens"]
    input_tokens: int


class Compacted(Shape):
    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[dict[str, Any]]
    usage: ResponseUsage


class Conversation(Shape):
    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class Deleted(Shape):
    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]


def whole(shape: type[Shape]) -> dict[int | str, dict[str, Any]]:
    return {200: {"model": shape}}
