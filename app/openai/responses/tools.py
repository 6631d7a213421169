"""Tools as the Responses API describes them, and as the functions that a model sees."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import orjson
from pydantic import AfterValidator, Discriminator, Field, Tag
from pydantic_core import from_json

from app.errors import RequestError
from app.openai import tools as chat
from app.schemas.body import Body, Hints, Some
from app.schemas.neutral import NOT_SUPPORTED

_MOST = chat.MOST_TOOLS
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
_CUSTOM_INPUT = {"type": "string", "description": "The whole input of the tool, as plain text."}
_CUSTOM = {"type": "object", "properties": {"input": _CUSTOM_INPUT}, "required": ["input"]}
# Places in a chat's request, and their counterparts in a Responses request.
_PLACES = (
    (re.compile(r"^tool_choice\.allowed_tools\.tools\.(\d+)\.function"), r"tool_choice.tools.\1"),
    (re.compile(r"^tool_choice\.function"), "tool_choice"),
)


def _kind_of(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return f"a {kind}" if isinstance(kind, str) else None


class _Hints(Hints):
    """Fields for tool search and program runs, which this server doesn't have."""

    defer_loading: bool | None = None  # no effect: all tools are shown at once
    allowed_callers: list[Literal["direct"]] | None = None


class FunctionTool(_Hints):
    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: Annotated[dict[str, Any], AfterValidator(chat.given_schema)] | None = None
    output_schema: Annotated[dict[str, Any] | None, Field(exclude=True)] = None  # no template shows it
    strict: bool | None = None

    def function(self) -> chat.Function:
        return chat.Function.model_construct(
            name=self.name, description=self.description, parameters=self.parameters, strict=self.strict
        )


class CustomTool(_Hints):
    """A tool that takes text. The model sees a function with one argument; its grammar is not enforced."""

    class Format(Body):
        type: Literal["text", "grammar"]
        definition: str | None = None
        syntax: Literal["lark", "regex"] | None = None

    type: Literal["custom"]
    name: Name
    description: str | None = None
    format: Format | None = None

    def function(self) -> chat.Function:
        texts = [self.description] if self.description else []
        if self.format is not None and self.format.definition:
            texts.append(f"The input has to match this {self.format.syntax or ''} grammar:\n{self.format.definition}")
        return chat.Function.model_construct(
            name=self.name, description="\n\n".join(texts) or None, parameters=_CUSTOM, strict=None
        )


_Single = Annotated[
    Annotated[FunctionTool, Tag("a function")] | Annotated[CustomTool, Tag("a custom")],
    Discriminator(_kind_of, NOT_SUPPORTED, "Not supported"),
]


class Namespace(Hints):
    """Tools with a name in common: the model sees `<namespace>__<name>`."""

    type: Literal["namespace"]
    name: Name
    description: str | None = None
    tools: Annotated[Some[_Single], Field(min_length=1, max_length=_MOST)]


ResponseTool = Annotated[
    Annotated[FunctionTool, Tag("a function")]
    | Annotated[CustomTool, Tag("a custom")]
    | Annotated[Namespace, Tag("a namespace")],
    Discriminator(_kind_of, NOT_SUPPORTED, "Not supported"),
]


class NamedTool(Body):
    type: Literal["function", "custom"]
    name: str
    namespace: str | None = None

    def chat(self) -> chat.NamedTool:
        name = shown_name(self.name, self.namespace)
        return chat.NamedTool(type="function", function=chat.NamedTool.Named(name=name))


class AllowedTools(Body):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[Some[NamedTool], Field(min_length=1, max_length=_MOST)]

    def chat(self) -> chat.AllowedTools:
        allowed_tools = chat.AllowedTools.Allowed(mode=self.mode, tools=[tool.chat() for tool in self.tools])
        return chat.AllowedTools(type="allowed_tools", allowed_tools=allowed_tools)


def _choice_kind(value: Any) -> str | None:
    if isinstance(value, str):
        return "a word"
    kind = _kind_of(value)
    return {"a function": "one", "a custom": "one", "a allowed_tools": "some"}.get(kind or "")


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("a word")]
    | Annotated[NamedTool, Tag("one")]
    | Annotated[AllowedTools, Tag("some")],
    Discriminator(_choice_kind, NOT_SUPPORTED, "Not supported"),
]


class ToolName(NamedTuple):
    """A tool's name, as its client knows it."""

    name: str
    namespace: str | None = None
    custom: bool = False


def shown_name(name: str, namespace: str | None) -> str:
    """The name that the model sees."""
    return f"{namespace}__{name}" if namespace else name


class ResponseTools(Body):
    """A request's fields about tools."""

    tools: Annotated[Some[ResponseTool], Field(max_length=_MOST)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    # Of tools that the server itself calls, which it never does.
    max_tool_calls: Annotated[int, Field(ge=0)] | None = None

    def _single(self) -> list[tuple[str, FunctionTool | CustomTool, Namespace | None]]:
        """Each with its place in the request."""
        tools: list[tuple[str, FunctionTool | CustomTool, Namespace | None]] = []
        for i, tool in enumerate(self.tools or ()):
            if isinstance(tool, Namespace):
                tools += [(f"tools.{i}.tools.{j}", inner, tool) for j, inner in enumerate(tool.tools)]
            else:
                tools.append((f"tools.{i}", tool, None))
        return tools

    def chat_tools(self) -> list[chat.Tool] | None:
        """The tools as functions of a chat; a namespace's description comes before that of its first tool."""
        if self.tools is None:
            return None
        tools, namespaces = [], set()
        for _, tool, space in self._single():
            function = tool.function()
            if space is not None:
                texts = [space.description] if space.description and space.name not in namespaces else []
                texts += [function.description] if function.description else []
                namespaces.add(space.name)
                update = {"name": shown_name(tool.name, space.name), "description": "\n\n".join(texts) or None}
                function = function.model_copy(update=update)
            tools.append(chat.Tool.model_construct(type="function", function=function))
        return tools

    def chat_choice(self) -> Any:
        return self.tool_choice.chat() if isinstance(self.tool_choice, NamedTool | AllowedTools) else self.tool_choice

    def tool_names(self) -> Mapping[str, ToolName]:
        """The tools' names, by the name that the model sees."""
        pairs = [(tool, space.name if space else None) for _, tool, space in self._single()]
        return {
            shown_name(tool.name, space): ToolName(tool.name, space, isinstance(tool, CustomTool))
            for tool, space in pairs
        }

    def check_tools(self, request: chat.ToolsRequest) -> None:
        """`request`: the same fields as a chat's. Raises: RequestError, which names the place in this request."""
        places = [place for place, _, _ in self._single()]
        if len(places) > _MOST:
            raise RequestError(f"'tools': at most {_MOST} of them.", param="tools")
        try:
            request.check_tools()
        except RequestError as exc:
            raise self.placed(exc) from None

    def placed(self, exc: RequestError) -> RequestError:
        """A chat's error, naming the place in this request."""
        if exc.param is None:
            return exc
        place = _placed(exc.param, [place for place, _, _ in self._single()])
        return RequestError(exc.message.replace(f"'{exc.param}'", f"'{place}'", 1), param=place)


def _placed(param: str, places: Sequence[str]) -> str:
    for chats, ours in _PLACES:
        param = chats.sub(ours, param)
    return re.sub(r"^tools\.(\d+)\.function\b", lambda match: places[int(match[1])], param)


def custom_arguments(text: str) -> str:
    """The arguments of a function that stands for a custom tool."""
    return orjson.dumps({"input": text}).decode()


def custom_input(arguments: str) -> str:
    """The text that a model wrote for a custom tool; `arguments` itself if it did not write the object asked for."""
    try:
        value = from_json(arguments)
    except ValueError:
        return arguments
    text = value.get("input") if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments
