"""What clients may send to the Responses API."""

from typing import Annotated, Any, Literal

from pydantic import Field

from app.api.schemas import MOST, Asked, Body, ChatRequest, Message, Query, Some
from app.errors import RequestError

Label = Annotated[str, Field(max_length=64)]
Metadata = Annotated[dict[Label, Annotated[str, Field(max_length=512)]], Field(max_length=16)]


class InputText(Body):
    """Of a message; one of an earlier response has more fields, which no model sees."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: Annotated[list[Any], Field(max_length=MOST)] | None = None
    logprobs: Annotated[list[Any], Field(max_length=MOST)] | None = None


class InputMessage(Body):
    """Also a message of an earlier response, as it came: it has an id and a status."""

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Annotated[Some[InputText], Field(max_length=MOST)] | str  # in this order, an error is the list's
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None

    def as_chat(self) -> Message:
        text = self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)
        return Message(role=self.role, content=text)


class TextOptions(Body):
    class Format(Body):
        type: Literal["text"]

    format: Format | None = None


class EventOptions(Body):
    include_obfuscation: bool | None = None  # nothing is obfuscated, which a client can't tell from luck


class ResponseRequest(Asked):
    input: Annotated[Some[InputMessage], Field(min_length=1, max_length=MOST)] | str
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    include: list[Literal["message.output_text.logprobs"]] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    stream_options: EventOptions | None = None
    background: bool | None = None
    store: bool | None = None
    metadata: Metadata | None = None
    safety_identifier: Label | None = None
    parallel_tool_calls: bool | None = None
    tool_choice: Literal["none", "auto"] | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    text: TextOptions | None = None
    truncation: Literal["disabled"] | None = None

    @property
    def kept(self) -> bool:
        return self.store is not False

    def check(self) -> None:
        """What a single field can't tell. Raises: RequestError."""
        if self.background and not self.kept:
            raise RequestError("'background' can only be used when 'store' is true.", param="background")
        if self.stream_options is not None and not self.stream:
            raise RequestError("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
        if self.top_logprobs and not self.include:
            raise RequestError(
                "'top_logprobs' is only allowed when 'include' has 'message.output_text.logprobs'.",
                param="top_logprobs",
            )

    def as_chat(self) -> ChatRequest:
        """The same as a conversation to go on with."""
        messages = [Message(role="user", content=self.input)] if isinstance(self.input, str) else []
        if not isinstance(self.input, str):
            messages += [message.as_chat() for message in self.input]
        if self.instructions is not None:
            messages.insert(0, Message(role="developer", content=self.instructions))
        return ChatRequest.model_construct(
            **{name: getattr(self, name) for name in Asked.model_fields},
            messages=messages,
            max_completion_tokens=self.max_output_tokens,
            logprobs=bool(self.include),
            top_logprobs=self.top_logprobs,
        )


class Retrieval(Query):
    """The query of a GET."""

    stream: bool = False
    starting_after: Annotated[int, Field(ge=0)] | None = None
    include_obfuscation: bool | None = None

    def check(self) -> None:
        """Raises: RequestError."""
        if self.starting_after is not None and not self.stream:
            raise RequestError("'starting_after' is only allowed when 'stream' is true.", param="starting_after")
