"""Responses: what a body means, and its answer as it is made."""

from typing import Any, Protocol

from app.dispatch.generation import Generation
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.runtime import Deployment
from app.errors import from_wire
from app.messages import Event, Failed
from app.openai.chat import plan_of
from app.openai.responses.live_source import LiveSource
from app.openai.responses.response_object import PREFIX, ResponseObject
from app.openai.responses.schemas import ResponseRequest
from app.openai.validation import parse_off_loop


class Source(Protocol):
    async def batch(self) -> list[Event]:
        """What has come since the last call; the empty list after its end."""


async def understand(state: Deployment, raw: bytes, *, explain: bool = False) -> tuple[ResponseRequest, GenerationPlan]:
    """Raises: XylemError."""
    body = await parse_off_loop(ResponseRequest, raw)
    body.check()
    return body, await state.off_loop(raw, lambda: plan_of(state, PREFIX, body.as_chat(), "input", explain=explain))


async def whole(call: Generation, body: ResponseRequest) -> dict[str, Any]:
    """Raises: what ended it."""
    return (await ended(LiveSource(call), ResponseObject(call.id, call.created, body))).response()


async def ended(source: Source, progress: ResponseObject) -> ResponseObject:
    """At its end. Raises: the error that it ended with."""
    while batch := await source.batch():
        for event in batch:
            progress.add(event)
        if progress.status == "failed" and isinstance(batch[-1], Failed):
            raise from_wire(batch[-1].code, batch[-1].message)
    return progress
