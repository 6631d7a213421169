"""The messages of a conversation as Anthropic's clients send them: turns, which are texts or blocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, GetCoreSchemaHandler, Tag
from pydantic_core import core_schema

from app.errors import RequestError
from app.openai.content_parts import FileId, MediaPart, picture
from app.openai.conversation import CallId
from app.schemas.body import MOST, Body, Hints, Some
from app.schemas.neutral import NOT_SUPPORTED, Refused

_BLOCKS = "content blocks of type"
Hint = dict[str, Any] | None  # of the client's own, without effect here


class TextBlock(Hints):
    type: Annotated[Literal["text"], Refused(_BLOCKS)]
    text: str
    citations: list[Any] | None = None


class ImageBlock(Hints):
    class Base64(Body):
        type: Literal["base64"]
        media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
        data: Annotated[str, Field(min_length=1)]

    class Url(Body):
        type: Literal["url"]
        url: Annotated[str, Field(min_length=1)]

    class File(Body):
        type: Literal["file"]
        file_id: FileId

    type: Literal["image"]
    source: Annotated[Base64 | Url | File, Field(discriminator="type")]

    def as_openais(self) -> MediaPart:
        source = self.source
        if isinstance(source, self.File):
            return picture(None, source.file_id)
        url = source.url if isinstance(source, self.Url) else f"data:{source.media_type};base64,{source.data}"
        return picture(url, None)


class ThinkingBlock(Hints):
    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class RedactedThinking(Hints):
    type: Literal["redacted_thinking"]
    data: str


class ToolUse(Hints):
    type: Literal["tool_use"]
    id: CallId
    name: Annotated[str, Field(min_length=1, max_length=256)]
    input: dict[str, Any]
    caller: Hint = None


Texts = Annotated[Some[TextBlock], Field(max_length=MOST)]


def _tag(value: Any) -> str:
    """A tag for a block's type, not the type itself: an error's path would seem to have it as a field's name."""
    return f"a {value.get('type') if isinstance(value, dict) else getattr(value, 'type', None)}"


@dataclass(frozen=True)
class _ByType:
    """A union of blocks. pydantic's own annotation can't be hashed with a context, as unions need it."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        by_tag = Discriminator(_tag, NOT_SUPPORTED, "Not supported", {"what": _BLOCKS})
        return by_tag.__get_pydantic_core_schema__(source, handler)


class ToolReference(Hints):
    """A tool that a client's own search has found. The model has seen it: deferred tools are shown like others."""

    type: Literal["tool_reference"]
    tool_name: Annotated[str, Field(min_length=1, max_length=256)]


ResultBlock = Annotated[
    Annotated[TextBlock, Tag("a text")]
    | Annotated[ImageBlock, Tag("a image")]
    | Annotated[ToolReference, Tag("a tool_reference")],
    _ByType(),
]


class ToolResult(Hints):
    type: Literal["tool_result"]
    tool_use_id: CallId
    content: Annotated[Some[ResultBlock], Field(max_length=MOST)] | str | None = None
    is_error: bool | None = None  # not shown to the model: the content says it, too


UserBlock = Annotated[
    Annotated[TextBlock, Tag("a text")]
    | Annotated[ImageBlock, Tag("a image")]
    | Annotated[ToolResult, Tag("a tool_result")],
    _ByType(),
]
AssistantBlock = Annotated[
    Annotated[TextBlock, Tag("a text")]
    | Annotated[ThinkingBlock, Tag("a thinking")]
    | Annotated[RedactedThinking, Tag("a redacted_thinking")]
    | Annotated[ToolUse, Tag("a tool_use")],
    _ByType(),
]


class Turn(Body):
    role: Literal["user", "assistant", "system"]
    content: Sequence[Any] | str

    @property
    def blocks(self) -> Sequence[Any]:
        return [text_block(self.content)] if isinstance(self.content, str) else self.content


class UserTurn(Turn):
    role: Literal["user"]
    content: Annotated[Some[UserBlock], Field(min_length=1, max_length=MOST)] | str


class AssistantTurn(Turn):
    role: Literal["assistant"]
    content: Annotated[Some[AssistantBlock], Field(max_length=MOST)] | str


class SystemTurn(Turn):
    """A system message in the middle of a conversation; the request's `system` comes before it."""

    role: Literal["system"]
    content: Texts | str


Turns = Some[Annotated[UserTurn | AssistantTurn | SystemTurn, Field(discriminator="role")]]


def text_block(text: str) -> TextBlock:
    return TextBlock(type="text", text=text)


def check_turns(turns: Sequence[Turn]) -> None:
    """Raises: RequestError when a tool's result has no call before it, or the last turn can't be continued."""
    calls: set[str] = set()
    for i, turn in enumerate(turns):
        for j, block in enumerate(turn.blocks):
            if isinstance(block, ToolUse):
                calls.add(block.id)
            elif isinstance(block, ToolResult) and block.tool_use_id not in calls:
                where = f"messages.{i}.content.{j}.tool_use_id"
                raise RequestError(f"'{where}': no message before it has a 'tool_use' of that id.", param=where)
    last = turns[-1]
    if last.role == "assistant" and not (last.blocks and isinstance(end := last.blocks[-1], TextBlock) and end.text):
        where = f"messages.{len(turns) - 1}.content"
        raise RequestError(f"'{where}': an assistant's turn is continued only if it ends with text.", param=where)


def media_params(turns: Sequence[Turn]) -> list[str]:
    """The names of all pictures' blocks, in their order."""
    names = []
    for i, turn in enumerate(turns):
        for j, block in enumerate(turn.content if not isinstance(turn.content, str) else ()):
            where = f"messages.{i}.content.{j}"
            if isinstance(block, ImageBlock):
                names.append(where)
            elif isinstance(block, ToolResult) and isinstance(block.content, list):
                names += [f"{where}.content.{k}" for k, b in enumerate(block.content) if isinstance(b, ImageBlock)]
    return names
