"""/v1/conversations: the items of consecutive responses, kept for a time."""

import asyncio
import secrets
from typing import Any

import orjson
from fastapi import APIRouter, Request

from app.api.http.request_body import collect
from app.api.openai.responses import answer_schemas as shapes
from app.api.openai.responses.routes import query_of
from app.api.state import ApiState, state_of
from app.errors import RequestNotFound
from app.ids import ConversationId, KeyId
from app.openai.responses.conversation_schemas import (
    ConversationRequest,
    ConversationUpdate,
    IncludeQuery,
    ItemsRequest,
)
from app.openai.responses.history import resolved
from app.openai.responses.input_items import InputItem
from app.openai.responses.items import items_of, page
from app.openai.responses.schemas import ItemsQuery
from app.openai.validation import B, parse, parse_off_loop

router = APIRouter()
PATH = "/v1/conversations"
ONE = f"{PATH}/{{conversation}}"


async def _asked(request: Request, schema: type[B]) -> tuple[ApiState, KeyId, B]:
    state = state_of(request)
    raw = await collect(request.scope, request.receive, state.settings.max_body)
    return state, state.api_keys.owner(request.scope), await parse_off_loop(schema, raw or b"{}")


async def _new_items(given: list[InputItem] | None) -> list[dict[str, Any]]:
    """In a thread: each may have thousands of parts. Raises: RequestError."""
    return await asyncio.to_thread(lambda: items_of(secrets.token_hex(12), resolved(given or (), {}, "items")))


@router.post(PATH, openapi_extra=ConversationRequest.openapi(), responses=shapes.whole(shapes.Conversation))
async def create(request: Request) -> dict[str, Any]:
    """A conversation, with items or without."""
    state, key, body = await _asked(request, ConversationRequest)
    items = await _new_items(body.items)
    quota = await state.quotas.kept(state.api_keys.client(request.scope))
    return (await state.conversations.create(key, body.metadata or {}, items, quota)).shown()


@router.get(ONE, responses=shapes.whole(shapes.Conversation))
async def retrieve(request: Request, conversation: str) -> dict[str, Any]:
    """A kept conversation."""
    state = state_of(request)
    found = await state.conversations.find(ConversationId(conversation), state.api_keys.owner(request.scope))
    return found.shown()


@router.post(ONE, openapi_extra=ConversationUpdate.openapi(), responses=shapes.whole(shapes.Conversation))
async def update(request: Request, conversation: str) -> dict[str, Any]:
    """Replaces its metadata."""
    state, key, body = await _asked(request, ConversationUpdate)
    return (await state.conversations.update(ConversationId(conversation), key, body.metadata)).shown()


@router.delete(ONE, responses=shapes.whole(shapes.Deleted))
async def delete(request: Request, conversation: str) -> dict[str, Any]:
    """Deletes it and its items; its responses stay."""
    state = state_of(request)
    await state.conversations.delete(ConversationId(conversation), state.api_keys.owner(request.scope))
    return {"id": conversation, "object": "conversation.deleted", "deleted": True}


@router.post(f"{ONE}/items", openapi_extra=ItemsRequest.openapi(), responses=shapes.whole(shapes.ItemsPage))
async def add_items(request: Request, conversation: str) -> dict[str, Any]:
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


@router.get(f"{ONE}/items", openapi_extra=ItemsQuery.openapi(), responses=shapes.whole(shapes.ItemsPage))
async def list_items(request: Request, conversation: str) -> dict[str, Any]:
    """A page of its items."""
    query = parse(ItemsQuery, query_of(request.query_params))
    return page([item for _, item in await _items(request, conversation)], query)


@router.get(f"{ONE}/items/{{item}}", openapi_extra=IncludeQuery.openapi())
async def retrieve_item(request: Request, conversation: str, item: str) -> dict[str, Any]:
    """One of its items."""
    parse(IncludeQuery, query_of(request.query_params))
    return (await _item(request, conversation, item))[1]


@router.delete(f"{ONE}/items/{{item}}", responses=shapes.whole(shapes.Conversation))
async def delete_item(request: Request, conversation: str, item: str) -> dict[str, Any]:
    """Removes the item, and returns the conversation."""
    state = state_of(request)
    raw, _ = await _item(request, conversation, item)
    key = state.api_keys.owner(request.scope)
    await state.conversations.remove(ConversationId(conversation), key, raw)
    return (await state.conversations.find(ConversationId(conversation), key)).shown()


async def _items(request: Request, conversation: str) -> list[tuple[bytes, dict[str, Any]]]:
    state = state_of(request)
    found = await state.conversations.items(ConversationId(conversation), state.api_keys.owner(request.scope))
    return await state.off_loop(b"".join(found), lambda: [(raw, orjson.loads(raw)) for raw in found])


async def _item(request: Request, conversation: str, item: str) -> tuple[bytes, dict[str, Any]]:
    for raw, found in await _items(request, conversation):
        if found["id"] == item:
            return raw, found
    raise RequestNotFound(f"The conversation has no item with the id '{item[:100]}'.")
