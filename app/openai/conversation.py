"""The messages of a conversation: as clients send them, and as chat templates take them."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from app import json_bytes
from app.errors import RequestError
from app.openai.content_parts import Answered, AnyText, MediaPart, Parts, Texts, joined
from app.schemas.body import Body, Some
from app.schemas.neutral import NEUTRAL_OF_MESSAGES, Refused, neutral

_MOST_CALLS = 128  # of a message
Name = Annotated[str, Field(max_length=256)]
CallId = Annotated[str, Field(min_length=1, max_length=256)]
# openai's package parses an answer's text, and sends the result back beside it. It is not kept.
Parsed = Annotated[Any, Field(exclude=True)]


class Message(Body):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Sequence[AnyText | MediaPart] | str | None
    name: Name | None = None

    @property
    def text(self) -> str:
        """The message's text, without pictures and sound."""
        content = self.content or ""
        return content if isinstance(content, str) else joined(content)

    @property
    def media(self) -> Sequence[MediaPart]:
        content = self.content
        if content is None or isinstance(content, str):
            return ()
        return [part for part in content if isinstance(part, MediaPart)]

    def for_template(self) -> dict[str, Any]:
        """Templates don't know `developer`, OpenAI's newer name of the system role, and take only text."""
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": self.text} | ({"name": self.name} if self.name else {})


class PromptMessage(Message):
    role: Literal["system", "developer", "user"]
    content: Parts


def _object(arguments: str) -> Any:
    """Arguments as templates take them: an object; unchanged if the model has not written one."""
    for _ in range(2):  # some models write the JSON of an object into a JSON text
        try:
            value = json_bytes.loads(arguments or "{}")
        except ValueError:
            break
        if isinstance(value, dict):
            return value
        if not isinstance(value, str):
            break
        arguments = value
    return arguments


class ToolCall(Body):
    class Called(Body):
        name: Annotated[str, Field(min_length=1, max_length=256)]
        arguments: str
        parsed_arguments: Parsed = None

    id: CallId
    type: Annotated[Literal["function"], Refused("tool calls of type")]
    function: Called
    index: int | None = None  # in calls that come from a stream

    def for_template(self) -> dict[str, Any]:
        """Hugging Face's templates take the arguments as an object."""
        function = {"name": self.function.name, "arguments": _object(self.function.arguments)}
        return {"id": self.id, "type": "function", "function": function}


@neutral(NEUTRAL_OF_MESSAGES)
class AssistantMessage(Message):
    """An earlier answer. Without content, as when it only called tools, templates get an empty text."""

    role: Literal["assistant"]
    content: Answered | None = None
    refusal: str | None = None  # what one of OpenAI's models said instead
    reasoning_content: str | None = None
    reasoning: str | None = None  # vLLM's name of the same
    tool_calls: Annotated[Some[ToolCall], Field(max_length=_MOST_CALLS)] | None = None
    parsed: Parsed = None

    @property
    def text(self) -> str:
        return super().text or self.refusal or ""

    def for_template(self) -> dict[str, Any]:
        message = super().for_template()
        reasoning = self.reasoning if self.reasoning_content is None else self.reasoning_content
        if reasoning is not None:
            message["reasoning_content"] = reasoning
        if self.tool_calls:
            message["tool_calls"] = [call.for_template() for call in self.tool_calls]
        return message


class ToolMessage(Message):
    """The result of a call in an earlier message."""

    role: Literal["tool"]
    content: Parts
    tool_call_id: CallId

    def for_template(self) -> dict[str, Any]:
        return super().for_template() | {"tool_call_id": self.tool_call_id}


class FunctionMessage(Message):
    """A result in OpenAI's older shape, which names the function instead of the call."""

    role: Literal["function"]
    content: Texts | None = None
    name: Name

    def for_template(self) -> dict[str, Any]:
        return super().for_template() | {"role": "tool"}


Messages = Some[
    Annotated[PromptMessage | AssistantMessage | ToolMessage | FunctionMessage, Field(discriminator="role")]
]


def check_conversation(messages: Sequence[Message]) -> None:
    """Raises: RequestError when a tool's result has no call before it."""
    calls: set[str] = set()
    for i, message in enumerate(messages):
        if isinstance(message, AssistantMessage):
            calls.update(call.id for call in message.tool_calls or ())
        elif isinstance(message, ToolMessage) and message.tool_call_id not in calls:
            where = f"messages.{i}.tool_call_id"
            raise RequestError(f"'{where}': no message before it has a tool call of that id.", param=where)


def has_media(messages: Iterable[Message]) -> bool:
    """Asked for each request."""
    for message in messages:  # noqa: SIM110 (a generator would cost as much as all the rest)
        if type(message.content) is list and message.media:
            return True
    return False


def thinks(message: Message) -> bool:
    return isinstance(message, AssistantMessage) and (message.reasoning_content or message.reasoning) is not None


def listed_texts(message: Message) -> list[dict[str, Any]]:
    """The texts of a message that is a list of them, as parts; empty for others, and beside media."""
    content = message.content
    if content is None or isinstance(content, str) or message.media:
        return []
    return [{"type": "text", "text": part.text} for part in content if isinstance(part, AnyText)]


def only_calls(message: Message) -> bool:
    return isinstance(message, AssistantMessage) and bool(message.tool_calls) and not message.content


def for_template(
    messages: Sequence[Message], *, nulls: bool = False, reasoning: str = "reasoning_content"
) -> list[dict[str, Any]]:
    """A checked conversation's messages. Tool results also have the function's name, which some templates show.

    `nulls`: a message that only calls tools has None as its content, by which the template recognises it.
    `reasoning`: the template's name of an answer's reasoning.
    """
    names: dict[str, str] = {}
    entries = []
    for message in messages:
        entry = message.for_template()
        if isinstance(message, AssistantMessage):
            names.update((call.id, call.function.name) for call in message.tool_calls or ())
            if nulls and only_calls(message):
                entry["content"] = None
            if reasoning != "reasoning_content" and "reasoning_content" in entry:
                entry[reasoning] = entry.pop("reasoning_content")
        elif isinstance(message, ToolMessage):
            entry.setdefault("name", names[message.tool_call_id])
        entries.append(entry)
    return entries
