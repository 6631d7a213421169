"""A response as it stands, by its request and its log: the same wherever it is asked for."""

from collections.abc import Iterable
from typing import Any, Literal

from app.errors import Cancelled, from_wire
from app.ids import RequestId
from app.messages import Delta, Done, Event, Failed, TokenLogprob
from app.openai.logprobs import token_logprob
from app.openai.responses.schemas import ResponseRequest

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
PREFIX = "resp_"
_LONG = 512  # tokens with logprobs: to write more of them as JSON would hold the event loop


class ResponseObject:
    def __init__(self, request: RequestId, created: int, body: ResponseRequest) -> None:
        self.id, self.body = request, body
        self.item = f"msg_{request.removeprefix(PREFIX)}"
        self.begun = not body.background  # no longer queued
        self.deltas = 0
        self._created = created
        self._tokens = 0
        self._finish: str | None = None
        self._text: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._shown: list[dict[str, Any]] = []  # the same as clients get them, as far as they were asked for
        self._end: Done | Failed | None = None

    def add(self, event: Event) -> None:
        if isinstance(event, Delta):
            self.begun = True
            self.deltas += 1
            self._tokens += len(event.tokens)
            self._text.append(event.text)
            self._logprobs += event.logprobs or ()
            self._finish = event.finish or self._finish
        elif isinstance(event, Done | Failed):
            self._end = event

    @property
    def is_long(self) -> bool:
        """Whether it is to be written in a thread."""
        return len(self._logprobs) > _LONG

    @property
    def status(self) -> Status:
        if isinstance(self._end, Failed):
            return "cancelled" if self._end.code == Cancelled.code else "failed"
        if self._end is not None:
            return "incomplete" if self._finish == "length" else "completed"
        return "in_progress" if self.begun else "queued"

    def part(self) -> dict[str, Any]:
        self._shown += map(token_logprob, self._logprobs[len(self._shown) :])
        return {"type": "output_text", "text": "".join(self._text), "annotations": [], "logprobs": self._shown}

    def forget(self) -> None:
        """It will not be shown again: here, since freeing its logprobs takes as long as writing them."""
        self._logprobs.clear()
        self._shown.clear()

    def message(self, content: Iterable[dict[str, Any]]) -> dict[str, Any]:
        status = self.status if self.status in ("in_progress", "completed") else "incomplete"
        return {"id": self.item, "type": "message", "role": "assistant", "status": status, "content": [*content]}

    def response(self) -> dict[str, Any]:
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
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": None,
            "metadata": body.metadata or {},
            "model": body.model,
            "output": [self.message([self.part()])] if self.deltas else [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "presence_penalty": body.presence_penalty or 0.0,
            "previous_response_id": None,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": {"effort": None, "summary": None},
            "safety_identifier": body.safety_identifier,
            "service_tier": body.tier or "default",
            "store": body.kept,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": [],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "usage": self._usage(),
            "user": body.user,
        }

    def _error(self) -> dict[str, str] | None:
        """OpenAI's list of codes is closed, so ours stands in the message."""
        if self.status != "failed" or not isinstance(self._end, Failed):
            return None
        code = "rate_limit_exceeded" if from_wire(self._end.code, "").status == 429 else "server_error"
        return {"code": code, "message": f"{self._end.message} ({self._end.code})"}

    def _usage(self) -> dict[str, Any] | None:
        end = self._end
        if not isinstance(end, Done):
            return None
        return {
            "input_tokens": end.prompt_tokens,
            "input_tokens_details": {"cached_tokens": end.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": self._tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": end.prompt_tokens + self._tokens,
        }


def logprobs_of(delta: Delta) -> list[dict[str, Any]]:
    return [token_logprob(found) for found in delta.logprobs or ()]
