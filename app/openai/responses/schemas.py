"""Requests to the Responses API."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from app.errors import RequestError
from app.openai.conversation import Message
from app.openai.efforts import Effort
from app.openai.prompt import PromptRequest
from app.openai.responses.input_items import InputItem, InputMessage, ItemReference, Items
from app.openai.responses.messages import as_messages
from app.openai.responses.tools import ResponseTools
from app.openai.schemas import Conversation, GenerationRequest
from app.openai.structured import OBJECT, Format
from app.schemas.body import Body, Query
from app.schemas.neutral import Refused, neutral

LOGPROBS, ENCRYPTED = "message.output_text.logprobs", "reasoning.encrypted_content"
# All of OpenAI's. All but the first two are about items that no answer has here.
Includable = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
Include = Annotated[list[Includable], Field(max_length=16)]
Identifier = Annotated[str, Field(min_length=1, max_length=256)]


class TextOptions(Body):
    class Given(Body):
        type: Annotated[Literal["text", "json_object", "json_schema"], Refused("formats of type")]
        name: Identifier | None = None
        description: str | None = None
        schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
        strict: bool | None = None

    format: Given | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(Body):
    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None  # answers have the reasoning itself
    generate_summary: Literal["auto", "concise", "detailed"] | None = None  # its older name


class EventOptions(Body):
    include_obfuscation: bool | None = None  # as in schemas.StreamOptions
    include_usage: bool | None = None  # the last event always has it


class ConversationId(Body):
    id: Identifier


@neutral()
class ResponseRequest(GenerationRequest, ResponseTools):
    input: Annotated[Items, Field(min_length=1)] | str
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    include: Include | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    stream_options: EventOptions | None = None
    background: bool | None = None
    store: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    previous_response_id: Identifier | None = None
    conversation: ConversationId | Identifier | None = None
    truncation: Literal["auto", "disabled"] | None = None
    # Codex's own notes, without effect.
    client_metadata: Annotated[dict[str, Any] | None, Field(exclude=True, max_length=64)] = None

    @property
    def with_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())

    @property
    def with_encrypted(self) -> bool:
        return ENCRYPTED in (self.include or ())

    @property
    def kept(self) -> bool:
        return self.store is not False

    @property
    def items(self) -> Sequence[InputItem]:
        return [InputMessage(role="user", content=self.input)] if isinstance(self.input, str) else self.input

    @property
    def conversation_id(self) -> str | None:
        return self.conversation.id if isinstance(self.conversation, ConversationId) else self.conversation

    @property
    def goes_back(self) -> bool:
        """Whether it names a kept response, conversation or item."""
        has_reference = self.previous_response_id is not None or self.conversation is not None
        return has_reference or any(isinstance(item, ItemReference) for item in self.items)

    def check(self) -> None:
        """Checks of several fields together. Raises: RequestError."""
        if self.background and not self.kept:
            raise RequestError("'background' can only be used when 'store' is true.", param="background")
        if self.conversation is not None and not self.kept:
            raise RequestError("'conversation' can only be used when 'store' is true.", param="conversation")
        if self.conversation is not None and self.previous_response_id is not None:
            raise RequestError(
                "'previous_response_id' can't be used with 'conversation'.", param="previous_response_id"
            )
        if self.stream_options is not None and not self.stream:
            raise RequestError("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
        if self.top_logprobs and not self.with_logprobs:
            raise RequestError(
                "'top_logprobs' is only allowed when 'include' has 'message.output_text.logprobs'.",
                param="top_logprobs",
            )
        self.asked_format()
        self.check_tools(self.prompt_request())

    def asked_format(self) -> Format | None:
        """Raises: RequestError."""
        text_format = self.text.format if self.text else None
        if text_format is None or text_format.type == "text":
            return None
        if text_format.type == "json_object":
            return Format("json", OBJECT, "text.format")
        if text_format.schema_ is None:
            raise RequestError("'text.format.schema' is missing.", param="text.format.schema")
        return Format("json", text_format.schema_, "text.format.schema")

    def prompt_request(self) -> PromptRequest:
        """Its fields for the prompt besides the items."""
        return PromptRequest.model_construct(**self._of_prompt())

    def _of_prompt(self) -> dict[str, Any]:
        verbosity = self.text.verbosity if self.text else None
        variables = None if verbosity in (None, "medium") else {"verbosity": verbosity}
        return {
            "tools": self.chat_tools(),
            "tool_choice": self.chat_choice(),
            "parallel_tool_calls": self.parallel_tool_calls,
            "reasoning_effort": self.reasoning.effort if self.reasoning else None,
            "chat_template_kwargs": variables,
        }

    def as_chat(self, items: Sequence[InputItem] | None = None) -> Conversation:
        """The request as a chat. `items`: its own, and those before; None: only its own."""
        messages = as_messages(self.items if items is None else items)
        shown_format: Any = self.text.format if self.text else None  # to whoever inspects it; `asked_format` counts
        if self.instructions is not None:
            messages.insert(0, Message(role="developer", content=self.instructions))
        return Conversation.model_construct(
            **{name: getattr(self, name) for name in GenerationRequest.model_fields},
            **self._of_prompt(),
            messages=messages,
            response_format=shown_format,
            max_completion_tokens=self.max_output_tokens,
            logprobs=self.with_logprobs,
            top_logprobs=self.top_logprobs,
        )


class Retrieval(Query):
    """The query of GET /v1/responses/{id}."""

    stream: bool = False
    starting_after: Annotated[int, Field(ge=0)] | None = None
    include: Include | None = None  # has no effect: the response's own `include` counts
    include_obfuscation: bool | None = None

    def check(self) -> None:
        """Raises: RequestError."""
        if self.starting_after is not None and not self.stream:
            raise RequestError("'starting_after' is only allowed when 'stream' is true.", param="starting_after")


class ItemsQuery(Query):
    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    include: Include | None = None
