"""Anthropic's Message Batches: POST and GET /v1/messages/batches; GET, DELETE, cancel and results of one.

They are batches like OpenAI's, of the endpoint /v1/messages: their requests are stored as the client's input file.
"""

from collections.abc import Iterator
from contextlib import suppress

import orjson
from fastapi import APIRouter, Request
from starlette.responses import StreamingResponse

from app.anthropic.answer_types import (
    AnthropicRefusal,
    MessageBatch,
    MessageBatchDeleted,
    MessageBatches,
    MessageBatchResult,
)
from app.anthropic.message_batches import (
    MESSAGES,
    WINDOW,
    MessageBatchesQuery,
    MessageBatchRequest,
    as_object,
    failures,
    input_file,
    is_message_batch,
    results,
)
from app.api.http.answered import refused, schema_of
from app.api.http.own_url import own_url
from app.api.intake.request_body import collect
from app.api.openai.batches import new_order
from app.api.openai.file_expiry import forget
from app.api.openai.files import add_file
from app.api.state import ApiState, state_of
from app.batch import paths
from app.batch.records import LIVE, Batch, StoredFile
from app.batch.storage import Storage, begun, in_thread
from app.errors import BatchNotFound, BatchOver, FileGone, RequestError, TooManyBatches
from app.ids import BatchId, new_file_id, new_message_batch_id
from app.schemas.answers import ends
from app.schemas.validation import parse
from app.store import clock
from app.tenants.admission import admitted

router = APIRouter(responses=refused(AnthropicRefusal), tags=["messages"])
PATH = f"{MESSAGES}/batches"
_PIECE = 2**18  # bytes of results that are sent at once


@router.post(PATH, openapi_extra=MessageBatchRequest.openapi())
async def create_message_batch(request: Request) -> MessageBatch:
    """Requests of `/v1/messages`, answered by idle engines within 24 hours."""
    state = state_of(request)
    await admitted()
    raw = await collect(request.scope, request.receive, state.settings.max_body)
    client, id_, now = state.api_keys.client(request.scope), new_message_batch_id(), int(clock.now())
    lines, count = await state.off_loop(raw, lambda: input_file(raw))
    expires = now + state.settings.file_keep_s
    file = StoredFile(new_file_id(), client.key, f"{id_}.jsonl", "batch", size=len(lines), created=now, expires=expires)
    await add_file(state, client, file, lambda: state.storage.put(file.path, lines))
    order = new_order(request, id_, MESSAGES, file.id, WINDOW, requests=count)
    try:
        return _object(request, await state.batch_store.create(order))
    except TooManyBatches:
        await forget(state.storage, state.files, file)
        raise


@router.get(PATH, openapi_extra=MessageBatchesQuery.openapi())
async def list_message_batches(request: Request) -> MessageBatches:
    """The client's, the newest first: after one, or before one."""
    state = state_of(request)
    query = parse(MessageBatchesQuery, orjson.dumps(dict(request.query_params)))
    if query.after_id and query.before_id:
        raise RequestError("'after_id' and 'before_id' exclude each other.", param="before_id")
    async with state.reading():
        batches, more = await state.batch_store.owned(
            state.api_keys.owner(request.scope),
            query.before_id or query.after_id or "",
            query.limit,
            newest_first=not query.before_id,
            only=is_message_batch,
            param="before_id" if query.before_id else "after_id",
        )
        objects = [_object(request, batch) for batch in (batches[::-1] if query.before_id else batches)]
    first, last = ends(objects)
    return {"data": objects, "first_id": first, "last_id": last, "has_more": more}


@router.get(f"{PATH}/{{message_batch}}")
async def show_message_batch(request: Request, message_batch: str) -> MessageBatch:
    return _object(request, await _find(request, message_batch))


@router.post(f"{PATH}/{{message_batch}}/cancel")
async def cancel_message_batch(request: Request, message_batch: str) -> MessageBatch:
    """No more requests are begun; the results so far can be had when it has ended."""
    batch = await _find(request, message_batch)
    if batch.status not in (*LIVE, "cancelled"):
        raise BatchOver("This batch has ended, and can't be canceled.")
    await state_of(request).batch_store.cancel(batch.order.id)
    return _object(request, await _find(request, message_batch))


@router.delete(f"{PATH}/{{message_batch}}")
async def delete_message_batch(request: Request, message_batch: str) -> MessageBatchDeleted:
    """Deletes a batch that has ended, with its requests and results."""
    state, batch = state_of(request), await _find(request, message_batch)
    if batch.status in LIVE:
        raise RequestError("This batch is being processed: cancel it, and delete it when it has ended.")
    order = batch.order
    for file in (order.input, batch.output, batch.errors_file):
        if file is not None:
            with suppress(FileGone):
                await forget(state.storage, state.files, await state.files.find(file, order.key))
    await in_thread(state.storage.delete, paths.folder(order.id))
    await state.batch_store.remove(order.id, order.key, batch.parts)
    return {"id": order.id, "type": "message_batch_deleted"}


@router.get(
    f"{PATH}/{{message_batch}}/results",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/x-jsonl": {"schema": schema_of(MessageBatchResult)}}}},
)
async def show_message_batch_results(request: Request, message_batch: str) -> StreamingResponse:
    """One line of JSON for each request, in any order."""
    state, batch = state_of(request), await _find(request, message_batch)
    if batch.status in LIVE:
        raise RequestError("This batch is being processed: it has results when it has ended.")
    pieces = await begun(_pieces(state.storage, batch, await _files(state, batch)))
    return StreamingResponse(pieces, media_type="application/x-jsonl")


async def _files(state: ApiState, batch: Batch) -> list[StoredFile]:
    """The files of its results; of a batch that failed, the file of its requests. Raises: FileGone."""
    ids = [batch.order.input] if batch.status == "failed" else [batch.output, batch.errors_file]
    return [await state.files.find(id_, batch.order.key) for id_ in ids if id_ is not None]


def _pieces(storage: Storage, batch: Batch, files: list[StoredFile]) -> Iterator[bytes]:
    for file in files:
        with storage.read(file.path) as lines:
            piece = bytearray()
            for line in failures(lines, batch) if batch.status == "failed" else results(lines):
                piece += line
                if len(piece) >= _PIECE:
                    yield bytes(piece)
                    piece.clear()
            if piece:
                yield bytes(piece)


async def _find(request: Request, batch: str) -> Batch:
    """One of the client's. Raises: BatchNotFound."""
    state = state_of(request)
    if not is_message_batch(BatchId(batch)):
        raise BatchNotFound(f"No message batch found with id '{batch[:100]}'.")
    return await state.batch_store.find(BatchId(batch), state.api_keys.owner(request.scope))


def _object(request: Request, batch: Batch) -> MessageBatch:
    state = state_of(request)
    keep_s = batch.order.output_expires_s or state.settings.file_keep_s
    return as_object(batch, own_url(state.settings, request.scope), clock.now(), keep_s)
