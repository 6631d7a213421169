"""/v1/conversations: the items of consecutive responses, kept for a time."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.http.answered import answers
from app.api.http.long_response import LongResponse
from app.api.intake.request_body import collect
from app.api.openai.responses.routes import query_of
from app.api.state import ApiState, state_of
from app.endpoints import LARGE
from app.errors import RequestError, RequestNotFound
from app.ids import ConversationId, KeyId
from app.openai.responses.answer_types import Conversation, ConversationDeleted, ItemsPage, ListedItem
from app.openai.responses.conversation_schemas import (
    ConversationRequest,
    ConversationUpdate,
    IncludeQuery,
    ItemsRequest,
)
from app.openai.responses.history import resolved
from app.openai.responses.input_items import InputItem
from app.openai.responses.items import items_of
from app.openai.responses.schemas import ItemsQuery
from app.schemas.validation import B, parse, parse_off_loop

router = APIRouter(tags=["conversations"])
PATH = "/v1/conversations"
ONE = f"{PATH}/{{conversation}}"
_PAGE_BYTES = 8 * 2**20  # a page with more ends before its limit

T = TypeVar("T")


async def _asked(request: Request, schema: type[B]) -> tuple[ApiState, KeyId, B]:
    state = state_of(request)
    raw = await collect(request.scope, request.receive, state.settings.max_body)
    return state, state.api_keys.owner(request.scope), await parse_off_loop(schema, raw or b"{}")


async def _new_items(new_items: list[InputItem] | None) -> list[ListedItem]:
    """New items, made in a thread: each may have thousands of parts. Raises: RequestError."""
    return await asyncio.to_thread(lambda: items_of(secrets.token_hex(12), resolved(new_items or (), {}, "items")))


@router.post(PATH, openapi_extra=ConversationRequest.openapi())
async def create_conversation(request: Request) -> Conversation:
    """A conversation, with items or without."""
    state, key, body = await _asked(request, ConversationRequest)
    items = await _new_items(body.items)
    quota = await state.quotas.kept(state.api_keys.client(request.scope))
    return (await state.conversations.create(key, body.metadata or {}, items, quota)).shown()


@router.get(ONE)
async def show_conversation(request: Request, conversation: str) -> Conversation:
    """A kept conversation."""
    state = state_of(request)
    record = await state.conversations.find(ConversationId(conversation), state.api_keys.owner(request.scope))
    return record.shown()


@router.post(ONE, openapi_extra=ConversationUpdate.openapi())
async def change_conversation(request: Request, conversation: str) -> Conversation:
    """Replaces its metadata."""
    state, key, body = await _asked(request, ConversationUpdate)
    quota = await state.quotas.kept(state.api_keys.client(request.scope))
    return (await state.conversations.update(ConversationId(conversation), key, body.metadata, quota)).shown()


@router.delete(ONE)
async def delete_conversation(request: Request, conversation: str) -> ConversationDeleted:
    """Deletes it and its items; its responses stay."""
    state = state_of(request)
    await state.conversations.delete(ConversationId(conversation), state.api_keys.owner(request.scope))
    return {"id": conversation, "object": "conversation.deleted", "deleted": True}


@router.post(f"{ONE}/items", openapi_extra=ItemsRequest.openapi())
async def add_items(request: Request, conversation: str) -> ItemsPage:
    """Appends items."""
    state, key, body = await _asked(request, ItemsRequest)
    parse(IncludeQuery, query_of(request.query_params))
    items = await _new_items(body.items)
    quota = await state.quotas.kept(state.api_keys.client(request.scope))
    await state.conversations.add(ConversationId(conversation), key, items, quota)
    return {
        "object": "list",
        "data": items,
        "first_id": items[0]["id"],
        "last_id": items[-1]["id"],
        "has_more": False,
    }


@router.get(f"{ONE}/items", openapi_extra=ItemsQuery.openapi(), responses=answers(ItemsPage))
async def list_items(request: Request, conversation: str) -> Response:
    """A page of its items. It ends before its limit where they are long."""
    state, query = state_of(request), parse(ItemsQuery, query_of(request.query_params))
    async with state.reading():
        key = state.api_keys.owner(request.scope)
        read = partial(_page, state, ConversationId(conversation), key, query)
        data, more = await state.conversations.unchanged(read)

        def written() -> bytes:
            first, last = (orjson.loads(data[0])["id"], orjson.loads(data[-1])["id"]) if data else (None, None)
            items: list[Any] = [*map(orjson.Fragment, data)]
            answer: ItemsPage = {
                "object": "list",
                "data": items,
                "first_id": first,
                "last_id": last,
                "has_more": more,
            }
            return orjson.dumps(answer)

        return LongResponse(await _off_loop(data, written), state.answers)


@router.get(f"{ONE}/items/{{item}}", openapi_extra=IncludeQuery.openapi(), responses=answers(ListedItem))
async def show_item(request: Request, conversation: str, item: str) -> Response:
    """One of its items."""
    parse(IncludeQuery, query_of(request.query_params))
    state = state_of(request)
    async with state.reading():
        key = state.api_keys.owner(request.scope)
        return LongResponse(await _item(state, ConversationId(conversation), key, item), state.answers)


@router.delete(f"{ONE}/items/{{item}}")
async def delete_item(request: Request, conversation: str, item: str) -> Conversation:
    """Removes the item, and returns the conversation."""
    state = state_of(request)
    key, within = state.api_keys.owner(request.scope), ConversationId(conversation)
    async with state.reading():
        await state.conversations.remove(within, key, await _item(state, within, key, item))
    return (await state.conversations.find(within, key)).shown()


async def _page(
    state: ApiState, conversation: ConversationId, key: KeyId, query: ItemsQuery
) -> tuple[list[bytes], bool]:
    """The items' JSON, and whether there are more. Raises: RequestError, ConversationGone, StoreDown."""
    data: list[bytes] = []
    size, has_begun = 0, query.after is None
    async for part in state.conversations.parts(conversation, key, newest_first=query.order == "desc"):
        if not has_begun:
            place = await _place(part, str(query.after))
            has_begun, part = place is not None, part[len(part) if place is None else place + 1 :]  # noqa: PLW2901 (the rest)
        for raw in part:
            if len(data) == query.limit or (data and size + len(raw) > _PAGE_BYTES):
                return data, True
            data.append(raw)
            size += len(raw)
    if not has_begun:
        raise RequestError("'after' is not the id of one of these items.", param="after")
    return data, False


async def _item(state: ApiState, conversation: ConversationId, key: KeyId, item: str) -> bytes:
    """Its JSON. Raises: RequestNotFound, ConversationGone, Saturated, StoreDown."""

    async def read() -> bytes:
        async for part in state.conversations.parts(conversation, key):
            if (place := await _place(part, item)) is not None:
                return part[place]
        raise RequestNotFound(f"The conversation has no item with the id '{item[:100]}'.")

    return await state.conversations.unchanged(read)


async def _place(part: Sequence[bytes], item: str) -> int | None:
    """Index of the item with that id among those of `part`; None: it isn't there."""
    raw_id = item.encode("utf-8", "replace")

    def place() -> int | None:
        return next((i for i, raw in enumerate(part) if raw_id in raw and orjson.loads(raw)["id"] == item), None)

    return await _off_loop(part, place)


async def _off_loop(part: Sequence[bytes], work: Callable[[], T]) -> T:
    """The result of `work` on these items: in a thread if they are long."""
    return await asyncio.to_thread(work) if sum(map(len, part)) > LARGE else work()
