"""Items of a conversation as messages of a chat, for templates."""

from collections.abc import Sequence
from typing import Any

from app.errors import RequestError
from app.openai.content_parts import AnyText, MediaPart, PlainText, picture
from app.openai.conversation import AssistantMessage, Message, ToolCall, ToolMessage
from app.openai.responses.input_items import (
    CallOutput,
    Compaction,
    Content,
    CustomCall,
    FunctionCall,
    InputImage,
    InputItem,
    InputMessage,
    InputPart,
    InputText,
    ReasoningItem,
    joined,
)
from app.openai.responses.opaque import disclose
from app.openai.responses.tools import custom_arguments, shown_name

_COMPACTED = "What was said before, in short:\n\n"


def check_calls(items: Sequence[InputItem], own: int) -> None:
    """`own`: how many are the request's own, the last ones. Raises: RequestError for an output without a call."""
    calls: set[str] = set()
    for i, item in enumerate(items):
        if isinstance(item, FunctionCall | CustomCall):
            calls.add(item.call_id)
        elif isinstance(item, CallOutput) and item.call_id not in calls:
            number = i - len(items) + own
            where = f"input.{number}.call_id" if number >= 0 else "conversation"
            raise RequestError(f"'{where}': no item before it is a call of that id.", param=where)


def as_messages(items: Sequence[InputItem]) -> list[Message]:
    """Consecutive reasoning, text and calls of the assistant are one message."""
    messages: list[Message] = []
    turn = _Turn()
    for item in items:
        other = _message(item)
        if other is not None or not turn.takes(item):
            messages += turn.end()
            turn = _Turn()
        if other is None:
            turn.add(item)
        else:
            messages.append(other)
    return messages + turn.end()


def _message(item: InputItem) -> Message | None:
    """None: it belongs to an assistant's message."""
    if isinstance(item, InputMessage) and item.role != "assistant":
        return Message.model_construct(role=item.role, content=_content(item.content))
    if isinstance(item, CallOutput):
        return ToolMessage.model_construct(role="tool", content=_content(item.output), tool_call_id=item.call_id)
    if isinstance(item, Compaction):
        return Message(role="user", content=_COMPACTED + disclose(item.encrypted_content))
    return None


def _content(content: Content) -> list[Any] | str:
    if isinstance(content, str) or all(isinstance(part, InputText) for part in content):
        return joined(content)
    return [_part(part) for part in content]


def _part(part: InputPart) -> AnyText | MediaPart:
    """The part as chats have it."""
    if isinstance(part, InputText):
        return PlainText.model_construct(type="text", text=part.text)
    return picture(part.image_url, part.file_id) if isinstance(part, InputImage) else part


def media_params(items: Sequence[InputItem], own: int) -> list[str]:
    """The names of all parts that are no text, in the order of `as_messages`.

    `own`: how many items are the request's own.
    """
    names = []
    for i, item in enumerate(items):
        content: Any = getattr(item, "output" if isinstance(item, CallOutput) else "content", None)
        if not isinstance(item, InputMessage | CallOutput) or isinstance(content, str):
            continue
        number = i - len(items) + own
        where = f"input.{number}" if number >= 0 else f"conversation.{i}"
        field = "output" if isinstance(item, CallOutput) else "content"
        names += [f"{where}.{field}.{j}" for j, part in enumerate(content) if not isinstance(part, InputText)]
    return names


class _Turn:
    """An assistant's message, built from its items."""

    def __init__(self) -> None:
        self._content: str | None = None
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []

    def takes(self, item: InputItem) -> bool:
        return isinstance(item, FunctionCall | CustomCall) or (self._content is None and not self._calls)

    def add(self, item: InputItem) -> None:
        if isinstance(item, ReasoningItem):
            self._reasoning.append(item.text)
        elif isinstance(item, InputMessage):
            self._content = joined(item.content)
        elif isinstance(item, FunctionCall | CustomCall):
            self._calls.append(_call(item))

    def end(self) -> list[Message]:
        """Empty if nothing was added."""
        if self._content is None and not self._calls and not self._reasoning:
            return []
        reasoning = "\n".join(self._reasoning) if self._reasoning else None
        return [
            AssistantMessage.model_construct(
                role="assistant", content=self._content, reasoning_content=reasoning, tool_calls=self._calls or None
            )
        ]


def _call(item: FunctionCall | CustomCall) -> ToolCall:
    arguments = item.arguments if isinstance(item, FunctionCall) else custom_arguments(item.input)
    function = ToolCall.Called.model_construct(name=shown_name(item.name, item.namespace), arguments=arguments)
    return ToolCall.model_construct(id=item.call_id, type="function", function=function)
