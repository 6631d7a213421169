"""A conversation's prompt: a request's fields for it besides the messages, and its text."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from app.dispatch.media.media_reader import NO_SAMPLES, Samples
from app.errors import RequestError
from app.messages.media import MediaKind
from app.openai.conversation import Message, check_conversation
from app.openai.efforts import Effort, effort_variables, nearest
from app.openai.json_schema import check_bounds
from app.openai.template_forms import fitted
from app.openai.template_habits import OURS, needs_descriptions, rendered
from app.openai.template_parts import Marker, show_parts
from app.openai.tools import ToolsRequest
from app.tokenizing.tokenizer import Tokenizer

_SHOWN = 64  # characters of a name
# Marks where the model is to continue. A template that trims its messages removes the space.
_HERE = "<<<go-on-here>>> "


def _small(fields: dict[str, Any]) -> dict[str, Any]:
    try:
        check_bounds(fields)
    except ValueError as exc:
        raise PydanticCustomError("template_variables", "Input should have {said}", {"said": str(exc)}) from None
    return fields


class PromptRequest(ToolsRequest):
    chat_template: Annotated[str, Field(min_length=1, max_length=2**15)] | None = None
    chat_template_kwargs: Annotated[dict[str, Any], AfterValidator(_small)] | None = None
    reasoning_effort: Effort | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    def check_prompt(self, messages: Sequence[Message]) -> None:
        """Raises: RequestError."""
        if self.tools is not None or self.tool_choice is not None:
            self.check_tools()
        check_conversation(messages)
        if not self.continue_final_message:
            return
        if self.add_generation_prompt:
            raise RequestError(
                "'continue_final_message' is only allowed without 'add_generation_prompt'.",
                param="continue_final_message",
            )
        last = messages[-1].for_template() if messages else {}
        if last.get("role") != "assistant" or not last["content"] or "tool_calls" in last:
            raise RequestError(
                "'continue_final_message' is only allowed when the last message is the assistant's, with content.",
                param="continue_final_message",
            )

    def template_variables(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """Raises: RequestError for variables that the template doesn't know, or that clients may not set."""
        known_names, client_variables = tokenizer.template_variables, self.chat_template_kwargs or {}
        for name, value in client_variables.items():
            where = f"chat_template_kwargs.{name[:_SHOWN]}"
            if name in OURS:
                raise RequestError(f"'{where}' can't be set in this way.", param=where)
            if name not in known_names and value is not None and value is not False:  # an unknown one is off
                raise RequestError(f"'{where}': this model's chat template does not know it.", param=where)
        variables = {} if self.reasoning_effort is None else effort_variables(tokenizer, self.reasoning_effort)
        variables |= {name: value for name, value in client_variables.items() if name in known_names}
        if tools := self.offered:
            if (variable := tokenizer.tools_variable) is None:
                raise RequestError("'tools': this model's chat template does not know tools.", param="tools")
            with_descriptions = any(tool.function.description is None for tool in tools) and needs_descriptions(
                tokenizer
            )
            variables[variable] = [tool.for_template(described=with_descriptions) for tool in tools]
        return variables

    def heard_effort(self, tokenizer: Tokenizer) -> str | None:
        """The effort that the template gets instead of the request's, or `ignored`; None: the same."""
        if (effort := self.reasoning_effort) is None or (word := nearest(tokenizer, effort)) == effort:
            return None
        return word


def tokenizer_of(tokenizer: Tokenizer, request: PromptRequest, *, trusted: bool) -> Tokenizer:
    """The tokenizer, with the request's own chat template if it has one.

    Raises: RequestError, also if requests aren't `trusted`.
    """
    if request.chat_template is None:
        return tokenizer
    if not trusted:
        raise RequestError("'chat_template' is not allowed on this server.", param="chat_template")
    return tokenizer.with_template(request.chat_template)


def chat_prompt(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    request: PromptRequest,
    markers: Mapping[MediaKind, Marker] | None = None,
    samples: Samples = NO_SAMPLES,
) -> str:
    """The prompt's text, with its special tokens; each picture, frame of a video and sound is its marker.

    `markers`: the model's; none: it takes no media. Raises: RequestError when the template refuses.
    """
    variables: dict[str, Any] = {}
    if request.chat_template_kwargs or request.reasoning_effort or request.tools:
        variables = request.template_variables(tokenizer)
    template_messages = fitted(tokenizer, messages)
    if markers:
        show_parts(template_messages, messages, tokenizer, markers, samples)
    if not request.continue_final_message:
        variables["add_generation_prompt"] = request.add_generation_prompt is not False
        return rendered(tokenizer, template_messages, variables)
    if isinstance(last := template_messages[-1]["content"], str):
        template_messages[-1]["content"] = last + _HERE
    else:
        last[-1] = {"type": "text", "text": last[-1]["text"] + _HERE}
    text = rendered(tokenizer, template_messages, variables | {"add_generation_prompt": False})
    at = text.rfind(_HERE.rstrip())
    if at < 0:
        raise RequestError(
            "'continue_final_message': the chat template does not show this message.", param="continue_final_message"
        )
    return text[:at] if text.startswith(_HERE, at) else text[:at].rstrip()
