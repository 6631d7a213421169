"""Answers of `/v1/messages`, and of `/v1/models` to Anthropic's clients."""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class ErrorDetails(TypedDict, closed=True):
    error_code: Literal["thread_unsupported_request"]
    unsupported: list[str]


class AnthropicError(TypedDict, closed=True):
    type: str
    message: str
    details: NotRequired[ErrorDetails]


class AnthropicRefusal(TypedDict, closed=True):
    type: Literal["error"]
    error: AnthropicError
    request_id: str | None


class MessageUsage(TypedDict, closed=True):
    input_tokens: int  # without the cached ones
    cache_creation_input_tokens: Literal[0]
    cache_read_input_tokens: int
    cache_creation: None
    output_tokens: int
    output_tokens_details: None
    server_tool_use: None
    inference_geo: None
    service_tier: Literal["standard", "flex"]


class Text(TypedDict, closed=True):
    type: Literal["text"]
    text: str
    citations: None


class ThinkingText(TypedDict, closed=True):
    type: Literal["thinking"]
    thinking: str
    signature: str


class Direct(TypedDict, closed=True):
    type: Literal["direct"]


class ToolUse(TypedDict, closed=True):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    caller: Direct


Block = Annotated[Text | ThinkingText | ToolUse, Field(discriminator="type")]


class _Stop(TypedDict):
    stop_reason: StopReason | None
    stop_sequence: str | None
    stop_details: None


class Stop(_Stop, closed=True):
    pass


class Message(_Stop, closed=True):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Block]
    container: None
    usage: MessageUsage


class MessageStart(TypedDict, closed=True):
    type: Literal["message_start"]
    message: Message


class BlockStart(TypedDict, closed=True):
    type: Literal["content_block_start"]
    index: int
    content_block: Block


class TextDelta(TypedDict, closed=True):
    type: Literal["text_delta"]
    text: str


class ThinkingDelta(TypedDict, closed=True):
    type: Literal["thinking_delta"]
    thinking: str


class SignatureDelta(TypedDict, closed=True):
    type: Literal["signature_delta"]
    signature: str


class InputDelta(TypedDict, closed=True):
    type: Literal["input_json_delta"]
    partial_json: str


class BlockDelta(TypedDict, closed=True):
    type: Literal["content_block_delta"]
    index: int
    delta: Annotated[TextDelta | ThinkingDelta | SignatureDelta | InputDelta, Field(discriminator="type")]


class BlockStop(TypedDict, closed=True):
    type: Literal["content_block_stop"]
    index: int


class MessageDelta(TypedDict, closed=True):
    type: Literal["message_delta"]
    delta: Stop
    usage: MessageUsage


class MessageStop(TypedDict, closed=True):
    type: Literal["message_stop"]


class TokenCount(TypedDict, closed=True):
    input_tokens: int


class RequestCounts(TypedDict, closed=True):
    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int


class MessageBatch(TypedDict, closed=True):
    id: str
    type: Literal["message_batch"]
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: RequestCounts
    created_at: str  # RFC 3339, here and below
    expires_at: str
    ended_at: str | None
    cancel_initiated_at: str | None
    archived_at: str | None
    results_url: str | None


class MessageBatches(TypedDict, closed=True):
    data: list[MessageBatch]
    first_id: str | None
    last_id: str | None
    has_more: bool


class MessageBatchDeleted(TypedDict, closed=True):
    id: str
    type: Literal["message_batch_deleted"]


class Succeeded(TypedDict, closed=True):
    type: Literal["succeeded"]
    message: Message


class Errored(TypedDict, closed=True):
    type: Literal["errored"]
    error: AnthropicRefusal


class NotExecuted(TypedDict, closed=True):
    type: Literal["canceled", "expired"]


Result = Annotated[Succeeded | Errored | NotExecuted, Field(discriminator="type")]


class MessageBatchResult(TypedDict, closed=True):
    """One line."""

    custom_id: str
    result: Result


Event = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop


class AnthropicModel(TypedDict, closed=True):
    type: Literal["model"]
    id: str
    display_name: str
    created_at: str  # RFC 3339
    lifecycle: Literal["active"]
    max_input_tokens: int
    max_tokens: int


class AnthropicModels(TypedDict, closed=True):
    data: list[AnthropicModel]
    has_more: Literal[False]
    first_id: str | None
    last_id: str | None
