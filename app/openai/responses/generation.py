"""Responses: the plan of a request, and a whole answer."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from app.dispatch.answering.generation import Generation
from app.dispatch.asking import Asking
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.media.media_reader import Origin, Samples
from app.dispatch.models.models import Model
from app.errors import PromptTooLong, RequestError, from_wire
from app.messages.events import Event, Failed
from app.messages.kept import ResponseContext
from app.openai.call_ids import earlier_calls
from app.openai.chat import chat_plan
from app.openai.media import load_media, origins_of
from app.openai.model_parser import place_in_reasoning
from app.openai.responses import answer_types as shown
from app.openai.responses.history import History
from app.openai.responses.input_items import InputItem
from app.openai.responses.live_source import LiveSource
from app.openai.responses.messages import as_messages, check_calls, media_params
from app.openai.responses.response_object import PREFIX, ResponseObject, begin_object
from app.openai.responses.schemas import ResponseRequest
from app.openai.responses.truncation import from_item
from app.openai.schemas import Conversation
from app.schemas.validation import parse_off_loop


class Source(Protocol):
    async def batch(self) -> list[Event]:
        """The events since the last call; the empty list after its end."""


async def read_request(asking: Asking, raw: bytes) -> ResponseRequest:
    """Raises: XylemError."""
    body = await asking.served(await parse_off_loop(ResponseRequest, raw), "responses")
    body.check()
    return body.filled(asking.find_model(body.model).defaults)  # the response shows the values that are used


async def understand(asking: Asking, raw: bytes, *, history: bytes = b"") -> tuple[ResponseRequest, GenerationPlan]:
    """`history`: JSON of the `History` that it continues. Raises: XylemError."""
    body = await read_request(asking, raw)
    if body.goes_back and not history:
        sources = {"previous_response_id": body.previous_response_id, "conversation": body.conversation}
        param = next((name for name, value in sources.items() if value is not None), "input")
        raise RequestError(f"'{param}': a line of a batch can't continue a kept answer or conversation.", param=param)
    parsed_history = await parse_off_loop(History, history) if history else History()
    plan, _ = await response_plan(asking, body, parsed_history, max(raw, history, key=len))
    return body, plan


async def response_plan(
    asking: Asking, body: ResponseRequest, history: History, longest: bytes
) -> tuple[GenerationPlan, ResponseContext]:
    """`longest`: JSON of its body, or of its history if that is longer. Raises: XylemError."""
    items, origins, params = await asking.serving.off_loop(longest, lambda: _checked(body, history))
    samples = await load_media(asking, asking.find_model(body.model), origins, params)

    def plan() -> tuple[GenerationPlan, ResponseContext]:
        answer_plan, conversation = _plan(asking, body, items, samples)
        return answer_plan, context_of(answer_plan.model, answer_plan.prompts[0], conversation)

    compiles = body.asked_format() is not None or body.prompt_request().binds_calls
    answer_plan, context = await asking.serving.off_loop(longest, plan, compiles=compiles)
    if answer_plan.grammars:
        with _own_names(body):
            await asking.serving.grammars.check(answer_plan.grammars)
    return answer_plan, context


def _checked(body: ResponseRequest, history: History) -> tuple[Sequence[InputItem], list[Origin], list[str]]:
    """All items, and the origins and names of their pictures and sounds. Raises: RequestError."""
    items = history.of(body.items)
    check_calls(items, len(body.items))
    params = media_params(items, len(body.items))
    return items, origins_of(as_messages(items)) if params else [], params


def context_of(model: Model, prompt: Sequence[int], conversation: Conversation) -> ResponseContext:
    place = place_in_reasoning(model, prompt, conversation)
    return ResponseContext(place.begun, earlier_calls(conversation.messages), over=place.over)


@contextmanager
def _own_names(body: ResponseRequest) -> Iterator[None]:
    """Errors raised within it name a chat's fields. Raises: RequestError that names those of a response."""
    try:
        yield
    except RequestError as exc:
        if exc.param == "chat_template_kwargs.verbosity":
            raise RequestError(exc.message.replace(exc.param, "text.verbosity"), param="text.verbosity") from exc
        if exc.param is not None and exc.param.startswith("tool"):
            raise body.placed(exc) from exc
        raise


def _plan(
    asking: Asking, body: ResponseRequest, items: Sequence[InputItem], samples: Samples
) -> tuple[GenerationPlan, Conversation]:
    """The plan for all items; with `truncation`, for as many of the latest as fit."""

    def tried(first: int) -> tuple[GenerationPlan, Conversation]:
        conversation = body.as_chat(from_item(items, first))
        with _own_names(body):
            answer_format = body.asked_format()
            return chat_plan(
                asking, PREFIX, conversation, "input", format_=answer_format, samples=samples
            ), conversation

    try:
        return tried(0)
    except PromptTooLong:
        if body.truncation != "auto" or len(items) < 2:
            raise
    low, high = 1, len(items) - 1  # `high` is the last one alone
    best = tried(high)
    while low < high:
        middle = (low + high) // 2
        try:
            best, high = tried(middle), middle
        except PromptTooLong:
            low = middle + 1
    return best


class ResponseWriter:
    """Writes a whole answer; `sse_events.py` writes streams."""

    def __init__(self, call: Generation, body: ResponseRequest) -> None:
        self._call, self._body = call, body

    async def whole(self) -> shown.ResponseObject:
        """Raises: the error that ended it."""
        call, body = self._call, self._body
        context = context_of(call.model, call.prompts[0], body.as_chat())
        progress = begin_object({body.model: call.model}, call.id, call.created, body, context)
        await ended(LiveSource(call), progress)
        return await asyncio.to_thread(progress.response) if progress.is_long else progress.response()


async def ended(source: Source, progress: ResponseObject) -> ResponseObject:
    """The response, when it has ended. Raises: the error that ended it."""
    while batch := await source.batch():
        for event in batch:
            progress.add(event)
        if progress.status == "failed" and isinstance(batch[-1], Failed):
            raise from_wire(batch[-1].code, batch[-1].message, batch[-1].param)
    return progress
