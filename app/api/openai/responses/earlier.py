"""The history of a request: kept responses, conversations and items that it continues or names."""

import asyncio
from collections.abc import Sequence
from itertools import chain
from typing import Any

import orjson

from app.api.intake.calls import patiently
from app.api.resumable.store import Found, ResumableStore
from app.api.state import ApiState
from app.dispatch.models.models import Model
from app.endpoint_registry import RESPONSE
from app.errors import ConversationGone, RequestError, RequestNotFound
from app.ids import ConversationId, KeyId, RequestId
from app.messages.events import Event
from app.messages.kept import KeptRequest
from app.openai.responses.history import History, check_length, resolved
from app.openai.responses.input_items import ItemReference
from app.openai.responses.items import items_of, response_of
from app.openai.responses.response_object import ResponseObject, begin_object
from app.openai.responses.schemas import ResponseRequest
from app.schemas.validation import parse, parse_off_loop
from app.tenants.admission import admitted

_MOST_REFERENCED = 16  # responses that one request may name items of


async def history_of(state: ApiState, body: ResponseRequest, key: KeyId) -> tuple[History, bytes]:
    """The items before its own, also as JSON.

    Raises: RequestError, ConversationGone, RateLimited, BudgetUsed, StoreDown.
    """
    if not body.goes_back:
        return History(), b""
    await admitted()

    async def read() -> tuple[History, bytes]:
        async with state.reading():  # and not while it waits for Redis: others may need only what is there
            return await _history(state, body, key)

    return await patiently(state, read)


async def _history(state: ApiState, body: ResponseRequest, key: KeyId) -> tuple[History, bytes]:
    most = state.settings.max_body
    items: list[Any] = []
    if body.previous_response_id is not None:
        items = await _chain(state, RequestId(body.previous_response_id), key)
    elif body.conversation_id is not None:
        conversation = ConversationId(body.conversation_id)
        try:
            raw_items = await state.conversations.items(conversation, key, most)
        except ConversationGone as exc:
            exc.param = "conversation"
            raise
        check_length(len(raw_items), sum(map(len, raw_items)), most, "conversation")
        items = [orjson.Fragment(item) for item in raw_items]
    param = "conversation" if body.conversation_id else "previous_response_id"
    references = await _referenced(state, body, key)
    raw = await asyncio.to_thread(orjson.dumps, {"items": items, "referenced": references})
    check_length(len(items), len(raw), most, param)
    history = await parse_off_loop(History, raw, what="The conversation before")
    return history, await state.off_loop(raw, history.understood)


async def all_items(
    state: ApiState, kept_request: KeptRequest
) -> tuple[ResponseObject, list[dict[str, Any]], list[Any]]:
    """A kept response so far, its own input items, and the items before them."""
    batches = await state.resumable_store.written(kept_request.id)
    return await asyncio.to_thread(_read, state.models, kept_request, list(chain.from_iterable(batches)))


def _read(
    models: dict[str, Model], kept_request: KeptRequest, events: Sequence[Event]
) -> tuple[ResponseObject, list[dict[str, Any]], list[Any]]:
    body = parse(ResponseRequest, kept_request.body)
    history = parse(History, kept_request.response.history) if kept_request.response.history else History()
    progress = begin_object(models, kept_request.id, kept_request.created, body, kept_request.response)
    for event in events:
        progress.add(event)
    progress.forget()  # with logprobs, a conversation would soon be too long
    before = history.model_dump(mode="json", exclude_none=True)["items"]
    return progress, items_of(kept_request.id, resolved(body.items, history.referenced)), before


async def _chain(state: ApiState, previous: RequestId, key: KeyId) -> list[Any]:
    record = await _find(
        state, previous, key, "previous_response_id", f"Previous response with id '{previous[:100]}' not found."
    )
    progress, own, before = await all_items(state, record.kept)
    if progress.status not in ("completed", "incomplete"):
        raise RequestError(
            f"'previous_response_id': that response is {progress.status}, and can't be continued.",
            param="previous_response_id",
        )
    return [*before, *own, *(item.shown() for item in progress.output.items)]


async def _find(state: ApiState, response: RequestId, key: KeyId, param: str, message: str) -> Found:
    store: ResumableStore = state.resumable_store
    try:
        record = await store.find(response, key)
    except RequestNotFound:
        raise RequestError(message, param=param) from None
    if record.kept.kind != RESPONSE.row.kind:
        raise RequestError(message, param=param)
    return record


async def _referenced(state: ApiState, body: ResponseRequest, key: KeyId) -> dict[str, Any]:
    """The items to which its own refer, by their ids; without those that are not kept."""
    ids_by_response: dict[RequestId, tuple[int, list[str]]] = {}
    for i, item in enumerate(body.items):
        if isinstance(item, ItemReference) and (response := response_of(item.id)) is not None:
            ids_by_response.setdefault(response, (i, []))[1].append(item.id)
    if len(ids_by_response) > _MOST_REFERENCED:
        raise RequestError(f"'input': references to items of more than {_MOST_REFERENCED} responses.", param="input")
    references: dict[str, Any] = {}
    for response, (i, ids) in ids_by_response.items():
        missing = f"'input.{i}.id': no item of that id is kept."
        record = await _find(state, response, key, f"input.{i}.id", missing)
        progress, own, _ = await all_items(state, record.kept)
        items = {item["id"]: item for item in (*own, *(item.shown() for item in progress.output.items))}
        references |= {name: items[name] for name in ids if name in items}
    return references
