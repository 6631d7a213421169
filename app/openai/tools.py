"""The functions that a model may call: as clients describe them, and which of them a request lets it see."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from app.errors import RequestError
from app.openai.body import Body, Some
from app.openai.json_schema import check_parameters
from app.openai.neutral import NOT_SUPPORTED, Refused

MOST_TOOLS = 128
_SHOWN = 200  # characters of what is wrong, in which names stand that are the client's
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


def _schema(given: dict[str, Any]) -> dict[str, Any]:
    try:
        check_parameters(given)
    except ValueError as exc:
        raise PydanticCustomError("json_schema", "Not a JSON schema: {said}", {"said": str(exc)[:_SHOWN]}) from None
    return given


FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
Parameters = Annotated[dict[str, Any], AfterValidator(_schema)]


class Function(Body):
    name: FunctionName
    description: str | None = None
    parameters: Parameters | None = None
    strict: bool | None = None


class Tool(Body):
    type: Annotated[Literal["function"], Refused("tools of type")]
    function: Function

    def for_template(self) -> dict[str, Any]:
        """As it came, but for `strict`, which is not the model's. Templates look into parameters that aren't there."""
        made: dict[str, Any] = {"name": self.function.name}
        if self.function.description is not None:
            made["description"] = self.function.description
        return {"type": "function", "function": made | {"parameters": self.parameters}}

    @property
    def parameters(self) -> dict[str, Any]:
        return _NO_PARAMETERS if self.function.parameters is None else self.function.parameters


class NamedTool(Body):
    class Named(Body):
        name: str

    type: Literal["function"]
    function: Named


class AllowedTools(Body):
    class Allowed(Body):
        mode: Literal["auto", "required"]
        tools: Annotated[Some[NamedTool], Field(min_length=1, max_length=MOST_TOOLS)]

    type: Literal["allowed_tools"]
    allowed_tools: Allowed


def _kind(given: Any) -> str | None:
    if isinstance(given, str):
        return "a word"
    kind = given.get("type") if isinstance(given, dict) else getattr(given, "type", None)
    return {"function": "one", "allowed_tools": "some"}.get(kind) if isinstance(kind, str) else None


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("a word")]
    | Annotated[NamedTool, Tag("one")]
    | Annotated[AllowedTools, Tag("some")],
    Discriminator(_kind, NOT_SUPPORTED, "Not supported"),
]


class ToolsRequest(Body):
    """What a request says about tools."""

    tools: Annotated[Some[Tool], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @property
    def offered(self) -> Sequence[Tool]:
        """Those that the model sees, and may call."""
        choice = self.tool_choice
        if self.tools is None or choice == "none":
            return ()
        if not isinstance(choice, AllowedTools):
            return self.tools
        names = {tool.function.name for tool in choice.allowed_tools.tools}
        return [tool for tool in self.tools if tool.function.name in names]

    def check_tools(self) -> None:
        """Raises: RequestError."""
        names: set[str] = set()
        for i, tool in enumerate(self.tools or ()):
            if tool.function.name in names:
                where = f"tools.{i}.function.name"
                raise RequestError(f"'{where}': there is another tool '{tool.function.name}'.", param=where)
            names.add(tool.function.name)
        for where, name in self._chosen():
            if not names:
                raise RequestError("'tool_choice' is only allowed when 'tools' are given.", param="tool_choice")
            if name is not None and name not in names:
                raise RequestError(f"'{where}': there is no tool of that name.", param=where)
        if offered := self.offered:
            self._check_grammar({tool.function.name for tool in offered})

    def _chosen(self) -> list[tuple[str, str | None]]:
        """What a choice speaks of, and where."""
        choice = self.tool_choice
        if isinstance(choice, NamedTool):
            return [("tool_choice.function.name", choice.function.name)]
        if isinstance(choice, AllowedTools):
            where = "tool_choice.allowed_tools.tools"
            return [
                (f"{where}.{i}.function.name", tool.function.name) for i, tool in enumerate(choice.allowed_tools.tools)
            ]
        return [("tool_choice", None)] if choice == "required" else []

    def _check_grammar(self, offered: set[str]) -> None:
        """What only a grammar could promise."""
        choice = self.tool_choice
        if isinstance(choice, NamedTool):
            raise _needs_grammar("tool_choice", "a named tool")
        if choice == "required" or (isinstance(choice, AllowedTools) and choice.allowed_tools.mode == "required"):
            raise _needs_grammar("tool_choice", "'required'")
        if self.parallel_tool_calls is False:
            raise _needs_grammar("parallel_tool_calls", "false")
        for i, tool in enumerate(self.tools or ()):
            if tool.function.strict and tool.function.name in offered:
                raise _needs_grammar(f"tools.{i}.function.strict", "true")


def _needs_grammar(param: str, value: str) -> RequestError:
    return RequestError(
        f"'{param}': {value} needs structured output, which this server does not have yet.", param=param
    )
