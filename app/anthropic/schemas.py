"""Requests of Anthropic's clients. Known hints without effect are accepted; unknown fields are refused by name."""

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from app.anthropic.content import Hint, Texts, Turns, check_turns
from app.anthropic.conversation import messages_of
from app.anthropic.names import openais_names
from app.openai.schemas import ChatRequest, GenerationRequest, Metadata, Stop
from app.openai.tools import MOST_TOOLS, Function, NamedTool, Parameters, Tool
from app.schemas.body import MOST, Body, Hints, NamesModel, Some
from app.schemas.neutral import Refused
from app.schemas.validation import validated


class CustomTool(Hints):
    # Anthropic's own tools have other types.
    type: Annotated[Literal["custom"] | None, Refused("tools of type")] = None
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
    description: str | None = None
    input_schema: Parameters
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    input_examples: list[Any] | None = None
    defer_loading: bool | None = None  # no effect: without a tool search of the server's, all tools are shown at once
    allowed_callers: Some[Annotated[Literal["direct"], Refused("callers of type")]] | None = None

    def as_openais(self) -> Tool:
        function = Function.model_construct(
            name=self.name, description=self.description, parameters=self.input_schema, strict=self.strict
        )
        return Tool.model_construct(type="function", function=function)


class ToolChoice(Body):
    type: Annotated[Literal["auto", "any", "tool", "none"], Refused("choices of type")]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    def as_openais(self) -> str | NamedTool:
        if self.type == "tool":
            return NamedTool(type="function", function=NamedTool.Named(name=self.name or ""))
        return {"any": "required"}.get(self.type, self.type)


class Thinking(Body):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1)] | None = None  # not enforced
    display: Literal["summarized", "omitted"] | None = None  # `summarized` is shown in full


class OutputConfig(Body):
    class Format(Body):
        model_config = ConfigDict(serialize_by_alias=True)  # so that a kept request parses again

        type: Annotated[Literal["json_schema"], Refused("formats of type")]
        schema_: Annotated[dict[str, Any], Field(alias="schema")]

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: Format | None = None


class PromptFields(NamesModel):
    """The fields for the prompt, and hints."""

    messages: Annotated[Turns, Field(min_length=1, max_length=MOST)]
    system: Texts | str | None = None
    tools: Annotated[Some[CustomTool], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    # Hints for features that are not here.
    betas: list[str] | None = None
    cache_control: Hint = None
    container: str | Hint = None
    context_management: Hint = None
    diagnostics: Hint = None
    inference_geo: str | None = None
    speed: str | None = None
    user_profile_id: str | None = None
    workspace_id: str | None = None
    mcp_servers: Annotated[list[Any], Field(max_length=0)] | None = None

    @cached_property
    def chat(self) -> ChatRequest:
        """The same request in OpenAI's shape. Raises: RequestError, with Anthropic's field names."""
        check_turns(self.messages)
        choice = self.tool_choice
        fields: dict[str, Any] = {
            "messages": messages_of(self.system, self.messages),
            "tools": None if self.tools is None else [tool.as_openais() for tool in self.tools],
            "tool_choice": None if choice is None else choice.as_openais(),
            "parallel_tool_calls": False if choice is not None and choice.disable_parallel_tool_use else None,
            "continue_final_message": self.messages[-1].role == "assistant" or None,
        }
        if self.output_config is not None and (output_format := self.output_config.format) is not None:
            schema = {"name": "answer", "schema": output_format.schema_, "strict": True}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        with openais_names():
            chat = validated(ChatRequest, fields | self._sampling())
            chat.check()
        return chat

    def _sampling(self) -> dict[str, Any]:
        """The chat's other fields."""
        return {"model": self.model}


class CountRequest(PromptFields):
    pass


def _known(value: Any) -> Any:
    """Anthropic's metadata without nulls: a client may send a user that is null."""
    return {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value


def _tier(value: Any) -> Any:
    return "default" if value == "standard_only" else value


class MessagesRequest(GenerationRequest, PromptFields):
    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: Annotated[list[Stop], Field(max_length=16)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    metadata: Annotated[Metadata | None, BeforeValidator(_known)] = None
    service_tier: Annotated[Literal["auto", "default", "flex", "standard_only"] | None, AfterValidator(_tier)] = None  # type: ignore[assignment]  # (the validator leaves those of the base class)

    def check(self) -> None:
        """Checks of several fields together. Raises: RequestError."""
        _ = self.chat

    @property
    def shows_thinking(self) -> bool:
        return self.thinking is None or self.thinking.display != "omitted"

    def _sampling(self) -> dict[str, Any]:
        """The sampling fields without `max_tokens`: there may be less room in the context, which is no error here."""
        fields = {name: getattr(self, name) for name in GenerationRequest.model_fields}
        return fields | {"stop": self.stop_sequences, "top_k": self.top_k}
