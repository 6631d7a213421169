"""The items of a conversation, as clients send them and as they are kept."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from app.openai.content_parts import AudioPart, Detail, FileId
from app.openai.conversation import CallId, Parsed
from app.openai.responses.opaque import disclose
from app.schemas.body import MOST, Body, Hints, Some
from app.schemas.neutral import NOT_SUPPORTED, Refused

# Parts of an earlier response that no model sees, and that are not kept.
Unread = Annotated[Annotated[list[Any], Field(max_length=MOST)] | None, Field(exclude=True)]
ItemId = Annotated[str, Field(max_length=256)]
Status = Literal["in_progress", "completed", "incomplete"]
CalledName = Annotated[str, Field(min_length=1, max_length=256)]


def _ours(text: str | None) -> str | None:
    try:
        if text is not None:
            disclose(text)
    except ValueError as exc:
        raise PydanticCustomError("opaque", "Can't be read: {said}", {"said": str(exc)}) from None
    return text


Opaque = Annotated[str | None, AfterValidator(_ours)]


class InputText(Hints):
    type: str
    text: str


class InputRefusal(InputText):
    """A refusal that OpenAI's models gave instead of an earlier response's answer: a text for others."""

    model_config = ConfigDict(serialize_by_alias=True)  # so that kept items parse again
    type: Literal["refusal"]
    text: Annotated[str, Field(alias="refusal")]


class PlainInputText(InputText):
    """A text of a message; texts of an earlier response have more fields."""

    type: Literal["input_text", "output_text", "text"]
    annotations: Unread = None
    logprobs: Unread = None
    parsed: Parsed = None


class InputImage(Hints):
    type: Literal["input_image"]
    image_url: Annotated[str, Field(min_length=1)] | None = None
    file_id: FileId | None = None
    detail: Detail = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.image_url is None) == (self.file_id is None):
            raise PydanticCustomError("image", "Give either 'image_url' or 'file_id'")
        return self


InputPart = Annotated[PlainInputText | InputRefusal | InputImage | AudioPart, Field(discriminator="type")]
# In this order, errors are reported for the list.
Content = Annotated[Some[InputPart], Field(max_length=MOST)] | str


def joined(content: Content) -> str:
    """The content's text, without pictures and sound."""
    return content if isinstance(content, str) else "\n".join(p.text for p in content if isinstance(p, InputText))


class Item(Body):
    id: ItemId | None = None
    status: Status | None = None


class InputMessage(Item):
    """A message, also one of an earlier response."""

    type: Annotated[Literal["message"] | None, Refused("items of type")] = None
    role: Annotated[Literal["user", "assistant", "system", "developer"], Refused("messages of role")]
    content: Content
    phase: Literal["commentary", "final_answer"] | None = None  # no template shows it


class ReasoningItem(Item):
    class Thought(Body):
        type: Literal["reasoning_text", "text"]
        text: str

    class Summary(Body):
        type: Literal["summary_text"]
        text: str

    type: Literal["reasoning"]
    summary: Annotated[list[Summary], Field(max_length=MOST)] | None = None
    content: Annotated[list[Thought], Field(max_length=MOST)] | None = None
    encrypted_content: Opaque = None

    @property
    def text(self) -> str:
        """The reasoning itself; else its summary."""
        if self.content:
            return "".join(part.text for part in self.content)
        if self.encrypted_content is not None:
            return disclose(self.encrypted_content)
        return "\n".join(part.text for part in self.summary or ())


class FunctionCall(Item):
    type: Literal["function_call"]
    call_id: CallId
    name: CalledName
    namespace: CalledName | None = None
    arguments: str
    parsed_arguments: Parsed = None


class CustomCall(Item):
    type: Literal["custom_tool_call"]
    call_id: CallId
    name: CalledName
    namespace: CalledName | None = None
    input: str


class CallOutput(Item):
    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: CallId
    output: Content
    name: CalledName | None = None  # not used: its call has the name
    namespace: CalledName | None = None


class Compaction(Item):
    type: Literal["compaction", "compaction_summary"]
    encrypted_content: Annotated[str, AfterValidator(_ours)]


class ItemReference(Body):
    """An item of a kept response."""

    type: Literal["item_reference"] | None = None
    id: ItemId


_TAGS = {
    "message": "a message",
    "reasoning": "reasoning of",
    "function_call": "a call",
    "custom_tool_call": "a custom call",
    "function_call_output": "an output",
    "custom_tool_call_output": "an output",
    "compaction": "a compaction",
    "compaction_summary": "a compaction",
    "item_reference": "a reference",
}


def _tag(value: Any) -> str | None:
    def found(name: str) -> Any:
        return value.get(name) if isinstance(value, dict) else getattr(value, name, None)

    kind = found("type")
    if kind is None:
        kind = "item_reference" if found("id") is not None and found("role") is None else "message"
    return _TAGS.get(kind) if isinstance(kind, str) else None


InputItem = Annotated[
    Annotated[InputMessage, Tag("a message")]
    | Annotated[ReasoningItem, Tag("reasoning of")]
    | Annotated[FunctionCall, Tag("a call")]
    | Annotated[CustomCall, Tag("a custom call")]
    | Annotated[CallOutput, Tag("an output")]
    | Annotated[Compaction, Tag("a compaction")]
    | Annotated[ItemReference, Tag("a reference")],
    Discriminator(_tag, NOT_SUPPORTED, "Not supported"),
]
Items = Annotated[Some[InputItem], Field(max_length=MOST)]
