"""Responses: what a body means, and its answer as it is made."""

from typing import Any, Protocol

from app.dispatch.generation import Generation
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.models import find_model
from app.dispatch.runtime import Deployment
from app.errors import from_wire
from app.messages import Event, Failed
from app.openai.chat import chat_plan
from app.openai.responses.live_source import LiveSource
from app.openai.responses.response_object import PREFIX, ResponseObject
from app.openai.responses.schemas import ResponseRequest
from app.openai.validation import parse_off_loop


class Source(Protocol):
    async def batch(self) -> list[Event]:
        """The events since the last call; the empty list after its end."""


async def understand(state: Deployment, raw: bytes, *, explain: bool = False) -> tuple[ResponseRequest, GenerationPlan]:
    """Raises: XylemError."""
    body = await parse_off_loop(ResponseRequest, raw)
    body.check()
    body = body.filled(find_model(state.models, body.model).defaults)  # the response tells what is used
    return body, await state.off_loop(raw, lambda: chat_plan(state, PREFIX, body.as_chat(), "input", explain=explain))


class ResponseWriter:
    """An answer that is made here, whole; `sse_events.py` writes streams."""

    def __init__(self, call: Generation, body: ResponseRequest) -> None:
        self._call, self._body = call, body

    async def whole(self) -> dict[str, Any]:
        """Raises: what ended it."""
        call = self._call
        return (await ended(LiveSource(call), ResponseObject(call.id, call.created, self._body))).response()


async def ended(source: Source, progress: ResponseObject) -> ResponseObject:
    """At its end. Raises: the error that it ended with."""
    while batch := await source.batch():
        for event in batch:
            progress.add(event)
        if progress.status == "failed" and isinstance(batch[-1], Failed):
            raise from_wire(batch[-1].code, batch[-1].message)
    return progress
