"""A response so far, computed from its request and its log: the same on every replica."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from app.dispatch.models.models import Model
from app.endpoints import RESPONSE
from app.errors import Cancelled, from_wire
from app.ids import RequestId
from app.messages.events import Delta, Done, Event, Failed
from app.messages.kept import ResponseContext
from app.openai.call_ids import CallIds
from app.openai.model_parser import Place, make_parser
from app.openai.reasoning_tokens import SHORT, reasoning_tokens
from app.openai.responses import answer_types as shown
from app.openai.responses.answer_types import Status
from app.openai.responses.output import ItemChange, Output
from app.openai.responses.schemas import ResponseRequest
from app.schemas.body import Body

PREFIX = RESPONSE.prefix
_LONG = 512  # tokens with logprobs: writing more of them as JSON would hold up the event loop


def begin_object(
    models: Mapping[str, Model], request: RequestId, created_at: float, body: ResponseRequest, context: ResponseContext
) -> "ResponseObject":
    """A response without output yet. The text of a model that is not served any more is shown as one message."""
    model, prompt_request = models.get(body.model), body.prompt_request()
    output = Output(
        request.removeprefix(PREFIX),
        make_parser(model, prompt_request, Place(context.begun, context.over)) if model else None,
        CallIds(model, request, context.earlier_calls).of,
        body.tool_names(),
        encrypted=body.with_encrypted,
        logprobs=body.with_logprobs,
    )
    return ResponseObject(request, int(created_at), body, output, model)


class ResponseObject:
    def __init__(
        self, request: RequestId, created_at: int, body: ResponseRequest, output: Output, model: Model | None = None
    ) -> None:
        self.id, self.body, self.output, self._model = request, body, output, model
        self.begun = not body.background  # no longer queued
        self._created = created_at
        self._tokens = 0
        self._finish: str | None = None
        self._end: Done | Failed | None = None

    def add(self, event: Event) -> list[ItemChange]:
        """Returns the changes of its items."""
        if isinstance(event, Delta):
            self.begun = True
            self._tokens += len(event.tokens)
            self._finish = event.finish or self._finish
            return self.output.add(event)
        if not isinstance(event, Done | Failed):
            return []
        self._end = event
        if isinstance(event, Failed):
            self.output.cut()
            return []
        return self.output.end("completed" if self.status == "completed" else "incomplete")

    @property
    def is_long(self) -> bool:
        """Whether it has to be written in a thread."""
        items = self.output.items
        return sum(item.tokens_with_logprobs for item in items) > _LONG or len(self.output.reasoning) > SHORT

    @property
    def status(self) -> Status:
        if isinstance(self._end, Failed):
            return "cancelled" if self._end.code == Cancelled.code else "failed"
        if self._end is not None:
            return "incomplete" if self._finish == "length" else "completed"
        return "in_progress" if self.begun else "queued"

    def forget(self) -> None:
        """Frees the logprobs, which takes as long as writing them. Only when it will not be shown again."""
        for item in self.output.items:
            item.forget()

    def response(self) -> shown.ResponseObject:
        body, status = self.body, self.status
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(self._end.ended) if status == "completed" and isinstance(self._end, Done) else None,
            "status": status,
            "error": self._error(),
            "frequency_penalty": body.frequency_penalty or 0.0,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "background": bool(body.background),
            "conversation": {"id": body.conversation_id} if body.conversation_id else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": body.max_tool_calls,
            "metadata": body.metadata or {},
            "model": body.model,
            "output": [item.shown() for item in self.output.items],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "presence_penalty": body.presence_penalty or 0.0,
            "previous_response_id": body.previous_response_id,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": self._reasoning(),
            "safety_identifier": body.safety_identifier,
            "service_tier": body.tier or "default",
            "store": body.kept,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": self._text(),
            "tool_choice": "auto" if body.tool_choice is None else as_sent(body.tool_choice),
            "tools": self._tools,
            "top_logprobs": body.top_logprobs or 0,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": body.truncation or "disabled",
            "usage": self._usage(),
            "user": body.user,
        }

    @cached_property
    def _tools(self) -> list[dict[str, Any]]:
        """Cached, because each event with the response has them, and building many is as slow as writing them."""
        return [tool_object(as_sent(tool)) for tool in self.body.tools or ()]

    def _reasoning(self) -> shown.Reasoning:
        """The request's reasoning options: answers have the reasoning itself, and no summary of it."""
        options = self.body.reasoning
        return {
            "effort": options.effort if options else None,
            "summary": (options.summary or options.generate_summary) if options else None,
        }

    def _text(self) -> shown.TextFormat:
        options = self.body.text
        text: shown.TextFormat = {"format": as_sent(options.format) if options and options.format else {"type": "text"}}
        if options and options.verbosity:
            text["verbosity"] = options.verbosity
        return text

    def _error(self) -> shown.Failure | None:
        """OpenAI's list of codes is closed, so our code is in the message."""
        if self.status != "failed" or not isinstance(self._end, Failed):
            return None
        return {
            "code": "rate_limit_exceeded" if from_wire(self._end.code, "").status == 429 else "server_error",
            "message": f"{self._end.message} ({self._end.code})",
        }

    @cached_property
    def _reasoning_tokens(self) -> int:
        """Number of tokens of reasoning in a complete answer."""
        return min(reasoning_tokens(self._model, self.output.reasoning), self._tokens) if self._model else 0

    def _usage(self) -> shown.ResponseUsage | None:
        end = self._end
        if not isinstance(end, Done):
            return None
        return {
            "input_tokens": end.prompt_tokens,
            "input_tokens_details": {"cached_tokens": end.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": self._tokens,
            "output_tokens_details": {"reasoning_tokens": self._reasoning_tokens},
            "total_tokens": end.prompt_tokens + self._tokens,
        }


def as_sent(part: Body | str) -> Any:
    return part if isinstance(part, str) else part.model_dump(mode="json", exclude_none=True, by_alias=True)


def tool_object(tool: dict[str, Any]) -> dict[str, Any]:
    """The tool with all fields of OpenAI's object."""
    if tool["type"] == "function":
        return {"description": None, "parameters": None, "strict": False} | tool
    return tool
