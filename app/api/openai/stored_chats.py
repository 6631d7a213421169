"""GET /v1/chat/completions: the stored chats; and one of them, its messages and metadata."""

import asyncio
from itertools import chain
from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.datastructures import QueryParams
from starlette.responses import Response

from app import json_bytes
from app.api.http.answered import answers
from app.api.http.long_response import LongResponse
from app.api.intake.request_body import read_short
from app.api.resumable.store import Found
from app.api.state import ApiState, state_of
from app.dispatch.asking import Asking
from app.dispatch.media.media_reader import Asker
from app.endpoint_registry import CHAT
from app.errors import MediaLost, ModelNotFound, RequestError, RequestNotFound
from app.ids import KeyId, RequestId
from app.messages.kept import StoredChat
from app.openai.answer_types import ChatCancelled, ChatDeleted, StoredChatCompletion, StoredChatList
from app.openai.chat import writer
from app.openai.responses.items import page
from app.openai.schemas import ChatRequest
from app.openai.stored_chat import (
    MessagesQuery,
    MetadataChange,
    StoredChatsQuery,
    StoredMessages,
    WrittenAnswer,
    messages_of,
)
from app.schemas.validation import parse, parse_off_loop
from app.telemetry import logger

log = logger(__name__)
router = APIRouter(tags=["chats"])
PATH = CHAT.path
_PAGE_BYTES = 8 * 2**20  # a page with more ends before its limit
_LONG = 512  # messages; more of them are written in a thread


@router.get(PATH, openapi_extra=StoredChatsQuery.openapi(), response_model=StoredChatList)
async def list_chats(request: Request) -> Response:
    """The client's stored chats, the oldest first."""
    state, key = state_of(request), state_of(request).api_keys.owner(request.scope)
    query = parse(StoredChatsQuery, _query_of(request.query_params))
    async with state.reading():
        return LongResponse(await _listed(state, request, key, query), state.answers)


async def _listed(state: ApiState, request: Request, key: KeyId, query: StoredChatsQuery) -> bytes:
    ids, more = await state.chats.page(
        key, query.after, query.limit, newest_first=query.order == "desc", is_match=query.fits
    )
    objects: dict[str, bytes] = {}
    remaining_bytes, last = _PAGE_BYTES, None
    for id_ in ids:
        if remaining_bytes <= 0:
            more = True
            break
        last = id_  # also of one that can't be shown: the next page begins behind it
        try:
            record, chat = await state.chats.find(id_, key)
            objects[id_] = await _shown(state, request, record, chat)
        except RequestNotFound:  # deleted meanwhile
            continue
        except (MediaLost, ModelNotFound, RequestError) as exc:  # the pools file has changed since, or the store
            log.warning("stored_chat_not_shown", request=id_, **record.kept.names, error=exc.code)
            continue
        remaining_bytes -= len(objects[id_])
    first = next(iter(objects), None)
    data: list[Any] = [orjson.Fragment(raw) for raw in objects.values()]
    page: StoredChatList = {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": more}
    return orjson.dumps(page)


@router.get(f"{PATH}/{{chat}}", response_model=StoredChatCompletion)
async def show_chat(request: Request, chat: str) -> Response:
    """The answer as it was given, and its metadata."""
    state = state_of(request)
    async with state.reading():
        return LongResponse(await _shown(state, request, *await _find(request, chat)), state.answers)


@router.post(f"{PATH}/{{chat}}", openapi_extra=MetadataChange.openapi(), response_model=StoredChatCompletion)
async def change_chat(request: Request, chat: str) -> Response:
    """Replaces its metadata."""
    state = state_of(request)
    body = await read_short(request, MetadataChange)
    quota = await state.quotas.kept(state.api_keys.client(request.scope))
    async with state.reading():
        record, old_chat = await _find(request, chat)
        new_chat = StoredChat(old_chat.model, body.metadata or {})
        await state.chats.change(record.kept.id, new_chat, quota)
        return LongResponse(await _shown(state, request, record, new_chat), state.answers)


@router.delete(f"{PATH}/{{chat}}")
async def delete_chat(request: Request, chat: str) -> ChatDeleted:
    """Deletes it."""
    state = state_of(request)
    async with state.reading():
        record, _ = await _find(request, chat, short=True)
    await state.chats.remove(record.kept)
    await state.resumable_store.delete(record.kept.id)
    return {"id": record.kept.id, "object": "chat.completion.deleted", "deleted": True}


@router.get(f"{PATH}/{{chat}}/messages", openapi_extra=MessagesQuery.openapi(), responses=answers(StoredMessages))
async def list_chat_messages(request: Request, chat: str) -> Response:
    """The messages of its request."""
    state, query = state_of(request), parse(MessagesQuery, orjson.dumps(dict(request.query_params)))
    async with state.reading():
        record, _ = await _find(request, chat)
        body = await parse_off_loop(ChatRequest, record.kept.body)

        def write() -> bytes:
            return json_bytes.dumps(page(messages_of(record.kept.id, body), query))

        return LongResponse(await asyncio.to_thread(write) if len(body.messages) > _LONG else write(), state.answers)


@router.post(f"{PATH}/{{chat}}/cancel")
async def cancel_chat(request: Request, chat: str) -> ChatCancelled:
    """Stops a chat that goes on without its reader, as one with an `Idempotency-Key` does; not one that has ended."""
    state = state_of(request)
    record = await state.resumable_store.find(RequestId(chat), state.api_keys.owner(request.scope), short=True)
    if record.kept.kind != CHAT.row.kind:
        raise RequestNotFound(f"You have no chat '{chat[:100]}' that is kept.")
    await state.answer_owner.cancel(record.kept.id)
    return {"id": record.kept.id, "object": "chat.completion.cancelled"}


async def _find(request: Request, chat: str, *, short: bool = False) -> tuple[Found, StoredChat]:
    """One of the client's. Raises: RequestNotFound, StoreDown; unless `short`, StorageDown and MediaLost."""
    state = state_of(request)
    return await state.chats.find(RequestId(chat), state.api_keys.owner(request.scope), short=short)


async def _shown(state: ApiState, request: Request, existing: Found, chat: StoredChat) -> bytes:
    """Raises: RequestNotFound; ModelNotFound, RequestError when the answer can't be parsed any more."""
    within = state.api_keys.client(request.scope).within
    asking = Asking(state, within, Asker(existing.kept.key, existing.kept.media))
    body, plan = await CHAT.understand(asking, existing.kept.body)
    batches = await state.resumable_store.written(existing.kept.id)
    answer = WrittenAnswer(existing.kept, plan, chain.from_iterable(batches))
    whole: StoredChatCompletion = {**await writer(answer, body).whole(), "metadata": chat.metadata}
    return await answer.made(json_bytes.dumps, whole)


def _query_of(params: QueryParams) -> bytes:
    """The query as JSON. Metadata come as `metadata[name]=value`."""
    fields: dict[str, Any] = dict(params)
    metadata_names = [name for name in fields if name.startswith("metadata[") and name.endswith("]")]
    if metadata_names:
        fields["metadata"] = {name[len("metadata[") : -1]: fields.pop(name) for name in metadata_names}
    return orjson.dumps(fields)
