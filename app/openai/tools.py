"""The functions that a model may call: the client's descriptions, and its choice among them."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from app.errors import RequestError
from app.grammars.checker import GrammarCheck
from app.messages.job import Grammar
from app.openai.json_schema import check_parameters, check_schema
from app.schemas.body import MOST, Body, Hints, Some
from app.schemas.neutral import NOT_SUPPORTED, Refused

MOST_TOOLS = MOST  # the context is the usual bound
_SHOWN = 200  # characters of an error, which quotes the client's names
_LONGEST = 2**16  # bytes of all schemas that bind calls
_ANY = {"type": "object"}
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


def given_schema(fields: dict[str, Any]) -> dict[str, Any]:
    try:
        check_parameters(fields)
    except ValueError as exc:
        raise PydanticCustomError("json_schema", "Not a JSON schema: {said}", {"said": str(exc)[:_SHOWN]}) from None
    return fields


FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
Parameters = Annotated[dict[str, Any], AfterValidator(given_schema)]


class Function(Hints):
    name: FunctionName
    description: str | None = None
    parameters: Parameters | None = None
    strict: bool | None = None


class Tool(Hints):
    type: Annotated[Literal["function"], Refused("tools of type")]
    function: Function

    def for_template(self, *, described: bool = False) -> dict[str, Any]:
        """The tool as templates read it, without `strict`, which is not for the model.

        Templates read `parameters` even where none were given. `described`: with a description, if only an empty one.
        """
        function: dict[str, Any] = {"name": self.function.name}
        if described or self.function.description is not None:
            function["description"] = self.function.description or ""
        return {"type": "function", "function": function | {"parameters": self.parameters}}

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


def _kind(value: Any) -> str | None:
    if isinstance(value, str):
        return "a word"
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return {"function": "one", "allowed_tools": "some"}.get(kind) if isinstance(kind, str) else None


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("a word")]
    | Annotated[NamedTool, Tag("one")]
    | Annotated[AllowedTools, Tag("some")],
    Discriminator(_kind, NOT_SUPPORTED, "Not supported"),
]


class BoundCalls(NamedTuple):
    """The tools that an answer may call, and the request's rules for calls."""

    schemas: dict[str, Any]  # of the parameters of each tool that may be called
    where: str  # the field that asks for it; "": none does
    forced: bool  # there is a call, and nothing else
    one: bool  # and no second one
    places: dict[str, str]  # where the parameters of each of these tools stand in the request
    strict: frozenset[str]  # names of those whose schemas are enforced whole, or refused
    checks: Sequence[GrammarCheck]  # of these schemas

    @property
    def bound(self) -> bool:
        """Whether a grammar has to enforce the rules."""
        return bool(self.where)


class ToolsRequest(Body):
    """A request's fields about tools."""

    tools: Annotated[Some[Tool], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @property
    def offered(self) -> Sequence[Tool]:
        """The tools that the model sees, and may call."""
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
                raise RequestError(f"'{where}': there are two tools '{tool.function.name}'.", param=where)
            names.add(tool.function.name)
        for where, name in self._chosen():
            if not names:
                raise RequestError("'tool_choice' is only allowed when 'tools' are given.", param="tool_choice")
            if name is not None and name not in names:
                raise RequestError(f"'{where}': there is no tool of that name.", param=where)

    def _chosen(self) -> list[tuple[str, str | None]]:
        """The tools that `tool_choice` names, each with its place; a None: any tool."""
        choice = self.tool_choice
        if isinstance(choice, NamedTool):
            return [("tool_choice.function.name", choice.function.name)]
        if isinstance(choice, AllowedTools):
            where = "tool_choice.allowed_tools.tools"
            return [
                (f"{where}.{i}.function.name", tool.function.name) for i, tool in enumerate(choice.allowed_tools.tools)
            ]
        return [("tool_choice", None)] if choice == "required" else []

    @property
    def binds_calls(self) -> bool:
        """Whether a grammar has to enforce rules for calls."""
        one = self.parallel_tool_calls is False
        return bool(self.offered) and (self._forces or one or any(t.function.strict for t in self.offered))

    @property
    def _forces(self) -> bool:
        choice = self.tool_choice
        forces_allowed = isinstance(choice, AllowedTools) and choice.allowed_tools.mode == "required"
        return forces_allowed or choice == "required" or isinstance(choice, NamedTool)

    def bound_calls(self) -> BoundCalls | None:
        """The rules for calls; None: there are no tools.

        Raises: RequestError for what can't be enforced.
        """
        if not (tools := self.offered):
            return None
        is_forced = self._forces
        tool_name = self.tool_choice.function.name if isinstance(self.tool_choice, NamedTool) else None
        callable_tools = [tool for tool in tools if tool_name in (None, tool.function.name)]
        schemas = {t.function.name: t.parameters if is_forced or t.function.strict else _ANY for t in callable_tools}
        if sum(len(json.dumps(schema, ensure_ascii=False).encode()) for schema in schemas.values()) > _LONGEST:
            problem = f"'tools': at most {_LONGEST} bytes of parameters in all tools whose calls are bound to them."
            raise RequestError(problem, param="tools")
        places = {t.function.name: f"tools.{i}.function.parameters" for i, t in enumerate(self.tools or ())}
        strict = [tool for tool in callable_tools if tool.function.strict]
        checks = [_strict(tool, places[tool.function.name]) for tool in strict]
        one = tool_name is not None or self.parallel_tool_calls is False
        where = "tool_choice" if is_forced else "parallel_tool_calls" if one else ""
        if strict and not where:
            where = places[strict[0].function.name].replace("parameters", "strict")
        names = frozenset(tool.function.name for tool in strict)
        return BoundCalls(schemas, where, is_forced, one=one, places=places, strict=names, checks=checks)


def _strict(tool: Tool, where: str) -> GrammarCheck:
    """Raises: RequestError for what can't be enforced."""
    try:
        check_schema(tool.parameters)
    except ValueError as exc:
        raise RequestError(f"'{where}': {exc}.", param=where) from None
    return GrammarCheck(Grammar("json", json.dumps(tool.parameters)), where)
