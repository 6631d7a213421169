"""OpenAI's batches: POST and GET /v1/batches, GET, cancel, and as extensions pause and resume of one.

Here they are only recorded in Redis. Batch workers find them there, and do the work.
"""

from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.http.headers import events_wanted
from app.api.http.live_stream import AS_EVENTS, LiveStream
from app.api.intake.request_body import read_short
from app.api.state import state_of
from app.batch.records import LIVE, Batch, BatchOrder
from app.batch.window import read_window
from app.errors import BatchOver, RequestError
from app.ids import BatchId, FileId, new_batch_id
from app.openai.batch_schemas import BatchesQuery, BatchRequest, as_object
from app.openai.file_answers import BatchList, BatchObject
from app.schemas.answers import ends
from app.schemas.validation import parse
from app.store import clock
from app.tenants.admission import admitted

router = APIRouter(tags=["batches"])
PATH = "/v1/batches"


@router.post(PATH, openapi_extra=BatchRequest.openapi())
async def create_batch(request: Request) -> BatchObject:
    """A batch: all requests of a file, answered by idle engines within a time."""
    state = state_of(request)
    body = await read_short(request, BatchRequest)
    body.check()
    input_, window = FileId(body.input_file_id), body.completion_window
    output_s = body.output_expires_after.seconds if body.output_expires_after else None
    order = new_order(
        request, new_batch_id(), body.endpoint, input_, window, metadata=body.metadata, output_expires_s=output_s
    )
    if (await state.files.find(order.input, order.key)).purpose != "batch":
        raise RequestError("The purpose of a batch's input file has to be 'batch'.", param="input_file_id")
    await admitted()
    # Results are stored whatever their size: a batch that is answered has been paid for. So no batch begins after that.
    quota = await state.quotas.files(state.api_keys.client(request.scope))
    await state.files.check_room(order.key, 0, quota, "input_file_id")
    return as_object(await state.batch_store.create(order))


def new_order(request: Request, id_: BatchId, endpoint: str, file: FileId, window: str, **more: Any) -> BatchOrder:
    """The client's, within its limits. Raises: RequestError for another `window` than there may be."""
    state = state_of(request)
    key, client = state.api_keys.key(request.scope), state.api_keys.client(request.scope)
    now = int(clock.now())
    return BatchOrder(
        id=id_,
        key=client.key,
        endpoint=endpoint,
        input=file,
        window=window,
        created=now,
        expires=now + read_window(window),
        rate=key.batch_rate if key is not None else None,
        tenant=client.tenant.name,
        within=client.within,
        tenant_lines=client.tenant.limits.batch_lines,
        **more,
    )


@router.get(PATH, openapi_extra=BatchesQuery.openapi(), response_model=BatchList, responses=AS_EVENTS)
async def list_batches(request: Request) -> BatchList | Response:
    """The client's batches, the newest first. With `Accept: text/event-stream` again whenever one has changed."""
    state = state_of(request)
    query = parse(BatchesQuery, orjson.dumps(dict(request.query_params)))
    owner = state.api_keys.owner(request.scope)

    async def look() -> BatchList:
        async with state.reading():
            batches, more = await state.batch_store.owned(owner, query.after or "", query.limit)
            data = [as_object(batch) for batch in batches]
            first, last = ends(data)
            return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": more}

    async def check() -> None:
        if state.settings.require_keys:
            await state.api_keys.admit(request.scope)  # it may have been revoked since the stream began

    if not events_wanted(request.scope):
        return await look()
    client, what = state.api_keys.client(request.scope).turn, (PATH, owner, query.after, query.limit)
    return LiveStream(state.live, client, what, look, check)


@router.get(f"{PATH}/{{batch}}")
async def show_batch(request: Request, batch: str) -> BatchObject:
    return as_object(await _find(request, batch))


@router.post(f"{PATH}/{{batch}}/cancel")
async def cancel_batch(request: Request, batch: str) -> BatchObject:
    """No more lines are begun; the answers so far are in its output file soon. Idempotent."""
    record = await _find(request, batch)
    if record.status not in (*LIVE, "cancelled"):
        raise BatchOver(f"Cannot cancel a batch with status '{record.status}'.")
    await state_of(request).batch_store.cancel(record.order.id)
    return as_object(await _find(request, batch))


@router.post(f"{PATH}/{{batch}}/pause")
async def pause_batch(request: Request, batch: str) -> BatchObject:
    """Extension: no lines are computed until it is resumed. Its deadline stays. An ended batch stays as it is."""
    return await _set_paused(request, batch, paused=True)


@router.post(f"{PATH}/{{batch}}/resume")
async def resume_batch(request: Request, batch: str) -> BatchObject:
    """Extension: continues a paused batch."""
    return await _set_paused(request, batch, paused=False)


async def _set_paused(request: Request, batch: str, *, paused: bool) -> BatchObject:
    record = await _find(request, batch)
    await state_of(request).batch_store.pause(record.order.id, paused=paused)
    return as_object(await _find(request, batch))


async def _find(request: Request, batch: str) -> Batch:
    """One of the client's. Raises: BatchNotFound."""
    state = state_of(request)
    return await state.batch_store.find(BatchId(batch), state.api_keys.owner(request.scope))
