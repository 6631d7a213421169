"""Videos as jobs: POST and GET /v1/videos; GET and DELETE of one, and GET of its content.

A job is a kept request (`app/api/resumable/`): it needs no client, and outlives the API replica that began it.
"""

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.http import x_request_id
from app.api.http.answered import answers
from app.api.http.request_trace import place_of, trace_of
from app.api.intake.calls import patiently, start
from app.api.intake.client_limits import check_priority
from app.api.openai.form import read_form
from app.api.openai.picture_files import kept_file
from app.api.resumable.store import Found
from app.api.state import ApiState, asking_of, state_of
from app.batch.records import StoredFile
from app.batch.storage import in_thread
from app.dispatch.asking import Asking
from app.endpoint_registry import VIDEOS
from app.errors import FileGone, ModelNotFound, RequestError, RequestNotFound
from app.ids import FileId, RequestId, new_request_id
from app.messages.kept import KeptRequest
from app.openai.picture_answers import Video, VideoDeleted, VideoList
from app.openai.videos import VideoRequest, VideosQuery, as_object
from app.schemas.answers import ends
from app.schemas.validation import parse
from app.store import clock
from app.store.page import page
from app.tenants.charge import returned

router = APIRouter(tags=["videos"])
PATH, KIND = VIDEOS.path, VIDEOS.row.kind


@router.post(PATH, openapi_extra=VideoRequest.openapi(), responses=answers(Video))
async def create_video(request: Request) -> Response:
    """Begins a video, from a form or JSON."""
    state, scope = state_of(request), request.scope
    raw, files = await read_form(request)
    if files:
        name = next(iter(files))[:100]
        raise RequestError(f"'{name}': videos are made of texts here, not of pictures.", param=name)
    body, plan = await VIDEOS.understand(asking_of(state, scope), raw)
    check_priority(state, scope, body)
    now, client = clock.now(), state.api_keys.client(scope)
    key = client.key
    id_ = new_request_id(plan.prefix, state.dispatcher.api)
    request_name = x_request_id.named_after(scope, id_)
    kept_request = KeptRequest(
        id_,
        KIND,
        body.understood(),
        created=now,
        deadline=now + plan.timeout_s,
        key=key,
        background=True,
        x_request_id=request_name,
        trace=place_of(scope),
        tenant=client.tenant.name,
    )
    charge = state.charge(scope, outlives=True)
    if charge is not None:  # refused here, so that nothing is kept of it
        await charge.admit(id_, plan.used(), kept_request.deadline)

    async def keep() -> None:
        await state.resumable_store.put(kept_request, quota=await state.quotas.kept(client))

    name, life_s = state.keys.videos_of(key), plan.timeout_s + state.settings.keep_s
    async with returned(charge):
        await patiently(state, keep)
        await state.wire.execute(
            [
                ("ZADD", name, round(now * 1000), id_),
                ("EXPIRE", name, round(life_s) + 60, "GT"),
                ("EXPIRE", name, round(life_s) + 60, "NX"),
            ]
        )
    start(state, kept_request, plan, charge, trace_of(scope))
    return _json(as_object(kept_request, body, plan, [], state.settings.media_keep_s))


@router.get(PATH, openapi_extra=VideosQuery.openapi())
async def list_videos(request: Request) -> VideoList:
    """The client's videos, newest or oldest first."""
    state, key = state_of(request), state_of(request).api_keys.owner(request.scope)
    query = parse(VideosQuery, orjson.dumps(dict(request.query_params)))
    name, ids = state.keys.videos_of(key), [query.after] if query.after else []
    objects: list[Video] = []
    lost_ids: list[str] = []
    more = True
    while more and len(objects) < query.limit:
        ids, more = await page(state.wire, name, ids, query.limit - len(objects), newest_first=query.order == "desc")
        for id_ in ids:
            try:
                objects.append(await _object(state, await state.resumable_store.find(RequestId(id_), key)))
            except RequestNotFound:
                lost_ids.append(id_)
            except (ModelNotFound, RequestError):  # its model is served no more
                continue
    if lost_ids:
        await state.wire.execute([("ZREM", name, *lost_ids)])
    first, last = ends(objects)
    return {"object": "list", "data": objects, "first_id": first, "last_id": last, "has_more": more}


@router.get(f"{PATH}/{{video}}", responses=answers(Video))
async def show_video(request: Request, video: str) -> Response:
    """Shows how far the video is."""
    state = state_of(request)
    return _json(await _object(state, await _find(request, video)))


@router.get(f"{PATH}/{{video}}/content", response_class=Response)
async def show_video_content(request: Request, video: str) -> Response:
    """The video, once it is complete."""
    card = await _object(state_of(request), await _find(request, video))
    if card["status"] != "completed":
        raise RequestError(f"This video is not complete: it is {card['status']}.", param="video_id")
    return await kept_file(request, video, "video")


@router.delete(f"{PATH}/{{video}}")
async def delete_video(request: Request, video: str) -> VideoDeleted:
    """Stops it if it is being made, and deletes it."""
    state, record = state_of(request), await _find(request, video)
    kept_request = record.kept
    await state.answer_owner.cancel(kept_request.id)
    await state.resumable_store.delete(kept_request.id)
    await state.wire.execute([("ZREM", state.keys.videos_of(kept_request.key), kept_request.id)])
    try:
        await _forget(state, await state.files.find(FileId(kept_request.id), kept_request.key))
    except FileGone:
        pass
    return {"id": kept_request.id, "object": "video.deleted", "deleted": True}


async def _forget(state: ApiState, file: StoredFile) -> None:
    await in_thread(state.painted.delete, file.path)
    await state.files.remove(file)


async def _find(request: Request, video: str) -> Found:
    """One of the client's. Raises: RequestNotFound, StoreDown."""
    state = state_of(request)
    async with state.reading():
        record = await state.resumable_store.find(RequestId(video), state.api_keys.owner(request.scope))
    if record.kept.kind != KIND:
        raise RequestNotFound
    return record


async def _object(state: ApiState, existing: Found) -> Video:
    body, plan = await VIDEOS.understand(Asking(state), existing.kept.body)
    async with state.reading():
        events = [event for batch in await state.resumable_store.written(existing.kept.id) for event in batch]
    return as_object(existing.kept, body, plan, events, state.settings.media_keep_s)


def _json(video: Video) -> Response:
    return Response(orjson.dumps(video), media_type="application/json")
