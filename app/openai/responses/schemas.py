"""What clients may send to the Responses API."""

from typing import Annotated, Any, Literal

from pydantic import Field

from app.errors import RequestError
from app.openai.body import MOST, Body, Query, Some
from app.openai.conversation import Message
from app.openai.neutral import Refused, neutral
from app.openai.schemas import Asked, Conversation

LOGPROBS = "message.output_text.logprobs"
# All that OpenAI has. Besides the logprobs, they are parts of what no answer has here.
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
# Of an earlier response: no model sees it, and it is not kept.
Unread = Annotated[Annotated[list[Any], Field(max_length=MOST)] | None, Field(exclude=True)]


class InputText(Body):
    """Of a message; one of an earlier response has more fields."""

    type: Annotated[Literal["input_text", "output_text", "text"], Refused("content parts of type")]
    text: str
    annotations: Unread = None
    logprobs: Unread = None


class InputMessage(Body):
    """Also a message of an earlier response, as it came: it has an id and a status."""

    type: Annotated[Literal["message"] | None, Refused("items of type")] = None
    role: Annotated[Literal["user", "assistant", "system", "developer"], Refused("messages of role")]
    content: Annotated[Some[InputText], Field(max_length=MOST)] | str  # in this order, an error is the list's
    id: Annotated[str, Field(max_length=256)] | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    phase: Literal["commentary", "final_answer"] | None = None  # no template shows it

    def as_chat(self) -> Message:
        text = self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)
        return Message(role=self.role, content=text)


class TextOptions(Body):
    class Format(Body):
        type: Annotated[Literal["text"], Refused()]

    format: Format | None = None
    verbosity: Annotated[Literal["medium"] | None, Refused()] = None


class EventOptions(Body):
    include_obfuscation: bool | None = None  # as in schemas.StreamOptions
    include_usage: bool | None = None  # the last event always has it


@neutral()
class ResponseRequest(Asked):
    input: Annotated[Some[InputMessage], Field(min_length=1, max_length=MOST)] | str
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    include: Include | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    stream_options: EventOptions | None = None
    background: bool | None = None
    store: bool | None = None
    parallel_tool_calls: bool | None = None
    tool_choice: Annotated[Literal["none", "auto"] | None, Refused()] = None
    text: TextOptions | None = None

    @property
    def with_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())

    @property
    def kept(self) -> bool:
        return self.store is not False

    def check(self) -> None:
        """What a single field can't tell. Raises: RequestError."""
        if self.background and not self.kept:
            raise RequestError("'background' can only be used when 'store' is true.", param="background")
        if self.stream_options is not None and not self.stream:
            raise RequestError("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
        if self.top_logprobs and not self.with_logprobs:
            raise RequestError(
                "'top_logprobs' is only allowed when 'include' has 'message.output_text.logprobs'.",
                param="top_logprobs",
            )

    def as_chat(self) -> Conversation:
        """The same as a conversation to go on with."""
        messages = [Message(role="user", content=self.input)] if isinstance(self.input, str) else []
        if not isinstance(self.input, str):
            messages += [message.as_chat() for message in self.input]
        if self.instructions is not None:
            messages.insert(0, Message(role="developer", content=self.instructions))
        return Conversation.model_construct(
            **{name: getattr(self, name) for name in Asked.model_fields},
            messages=messages,
            max_completion_tokens=self.max_output_tokens,
            logprobs=self.with_logprobs,
            top_logprobs=self.top_logprobs,
        )


class Retrieval(Query):
    """The query of a GET."""

    stream: bool = False
    starting_after: Annotated[int, Field(ge=0)] | None = None
    include: Include | None = None  # what was asked for at first is there anyway
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
