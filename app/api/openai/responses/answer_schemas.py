"""What clients of the Responses API get, for the OpenAPI document only."""

from typing import Any, Literal

from app.api.http.answer_schemas import Shape, TokenLogprob, answered
from app.openai.responses.response_object import Status


class Part(Shape):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprob]


class Item(Shape):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: Literal["in_progress", "completed", "incomplete"]
    content: list[Part]


class Failure(Shape):
    code: Literal["rate_limit_exceeded", "server_error"]
    message: str


class Incomplete(Shape):
    reason: Literal["max_output_tokens"]


class Reasoning(Shape):
    effort: None
    summary: None


class Format(Shape):
    type: Literal["text"]


class TextFormat(Shape):
    format: Format


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
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None
    metadata: dict[str, str]
    model: str
    output: list[Item]
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: None
    prompt_cache_key: str | None
    reasoning: Reasoning
    safety_identifier: str | None
    service_tier: Literal["default", "flex"]
    store: bool
    temperature: float
    text: TextFormat
    tool_choice: Literal["none", "auto"]
    tools: list[Any]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
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
    item: Item


class OfPart(Numbered):
    item_id: str
    output_index: int
    content_index: int


class PartEvent(OfPart):
    type: Literal["response.content_part.added", "response.content_part.done"]
    part: Part


class DeltaEvent(OfPart):
    type: Literal["response.output_text.delta"]
    delta: str
    logprobs: list[TokenLogprob]


class TextEvent(OfPart):
    type: Literal["response.output_text.done"]
    text: str
    logprobs: list[TokenLogprob]


class ErrorEvent(Numbered):
    type: Literal["error"]
    code: str
    message: str
    param: str | None


RESPONSE = answered(ResponseObject, ResponseEvent, ItemEvent, PartEvent, DeltaEvent, TextEvent, ErrorEvent)
WHOLE: dict[int | str, dict[str, Any]] = {200: {"model": ResponseObject}}
