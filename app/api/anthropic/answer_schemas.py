"""Answers of `/v1/messages`, for the OpenAPI document only, as `app/api/http/answer_schemas.py`."""

from typing import Annotated, Any, Literal

from pydantic import Field

from app.api.http.answer_schemas import Shape, answered
from app.schemas.body import inlined

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class AnthropicRefusal(Shape):
    class Error(Shape):
        type: str
        message: str

    type: Literal["error"]
    error: Error
    request_id: str | None


class MessageUsage(Shape):
    input_tokens: int  # without the cached ones
    cache_creation_input_tokens: Literal[0]
    cache_read_input_tokens: int
    cache_creation: None
    output_tokens: int
    output_tokens_details: None
    server_tool_use: None
    inference_geo: None
    service_tier: Literal["standard", "flex"]


class Text(Shape):
    type: Literal["text"]
    text: str
    citations: None


class ThinkingText(Shape):
    type: Literal["thinking"]
    thinking: str
    signature: str


class Direct(Shape):
    type: Literal["direct"]


class ToolUse(Shape):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    caller: Direct


Block = Annotated[Text | ThinkingText | ToolUse, Field(discriminator="type")]


class Stop(Shape):
    stop_reason: StopReason | None
    stop_sequence: str | None
    stop_details: None


class Message(Stop):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Block]
    container: None
    usage: MessageUsage


class MessageStart(Shape):
    type: Literal["message_start"]
    message: Message


class BlockStart(Shape):
    type: Literal["content_block_start"]
    index: int
    content_block: Block


class TextDelta(Shape):
    type: Literal["text_delta"]
    text: str


class ThinkingDelta(Shape):
    type: Literal["thinking_delta"]
    thinking: str


class SignatureDelta(Shape):
    type: Literal["signature_delta"]
    signature: str


class InputDelta(Shape):
    type: Literal["input_json_delta"]
    partial_json: str


class BlockDelta(Shape):
    type: Literal["content_block_delta"]
    index: int
    delta: Annotated[TextDelta | ThinkingDelta | SignatureDelta | InputDelta, Field(discriminator="type")]


class BlockStop(Shape):
    type: Literal["content_block_stop"]
    index: int


class MessageDelta(Shape):
    type: Literal["message_delta"]
    delta: Stop
    usage: MessageUsage


class MessageStop(Shape):
    type: Literal["message_stop"]


class TokenCount(Shape):
    input_tokens: int


class RequestCounts(Shape):
    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int


class MessageBatch(Shape):
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


class MessageBatches(Shape):
    data: list[MessageBatch]
    first_id: str | None
    last_id: str | None
    has_more: bool


class MessageBatchDeleted(Shape):
    id: str
    type: Literal["message_batch_deleted"]


class Succeeded(Shape):
    type: Literal["succeeded"]
    message: Message


class Errored(Shape):
    type: Literal["errored"]
    error: AnthropicRefusal


class NotExecuted(Shape):
    type: Literal["canceled", "expired"]


class MessageBatchResult(Shape):
    """One line."""

    custom_id: str
    result: Annotated[Succeeded | Errored | NotExecuted, Field(discriminator="type")]


EVENTS = (MessageStart, BlockStart, BlockDelta, BlockStop, MessageDelta, MessageStop, AnthropicRefusal)
_REFUSED = {"default": {"model": AnthropicRefusal, "description": "Refused, or failed"}}
MESSAGE = answered(Message, *EVENTS) | _REFUSED
COUNTED = {200: {"model": TokenCount}} | _REFUSED
MESSAGE_BATCH = {200: {"model": MessageBatch}} | _REFUSED
MESSAGE_BATCHES = {200: {"model": MessageBatches}} | _REFUSED
MESSAGE_BATCH_DELETED = {200: {"model": MessageBatchDeleted}} | _REFUSED
_RESULTS = {"application/x-jsonl": {"schema": inlined(MessageBatchResult.model_json_schema())}}
MESSAGE_BATCH_RESULTS: dict[int | str, dict[str, Any]] = {200: {"content": _RESULTS}} | _REFUSED
