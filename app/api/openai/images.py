"""POST /v1/images/generations and /edits: pictures, whole or streamed while they are painted; GET of a stored one."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from app.api.http.answered import answered
from app.api.intake.calls import placed_call
from app.api.intake.client_limits import check_priority
from app.api.intake.request_body import collect
from app.api.openai.alias_turn import other_plan
from app.api.openai.conductor import Conductor
from app.api.openai.form import form_schema, read_form
from app.api.openai.image_stream import ImageStream
from app.api.openai.picture_files import PATH, keep, kept_file
from app.api.state import ApiState, asking_of, state_of
from app.dispatch.answering.generation import Generation
from app.dispatch.asking import Asking
from app.dispatch.models.pipeline_named import PipelineNamed
from app.endpoint_registry import IMAGES
from app.endpoints import EDITS
from app.errors import RequestError
from app.media.source import MediaSource
from app.openai.answer_types import Refusal
from app.openai.images import EditRequest, ImageRequest, ImageWriter, PicturesRequest, understand_edit
from app.openai.picture_answers import Kind, PictureEvent, Pictures

router = APIRouter(tags=["images"])
_ANSWERS = answered(Pictures, PictureEvent, Refusal)


@router.post(IMAGES.path, openapi_extra=ImageRequest.openapi(), responses=_ANSWERS)
async def create_image(request: Request) -> Response:
    """Pictures of a text."""
    state = state_of(request)
    raw = await collect(request.scope, request.receive, state.settings.max_body)
    return await handle(state, raw, request.scope, request.receive)


@router.post(EDITS.path, openapi_extra=form_schema(EditRequest, "image", "mask"), responses=_ANSWERS)
async def edit_image(request: Request) -> Response:
    """Other pictures of a picture, or of a part of it, from a form."""
    state, scope = state_of(request), request.scope
    raw, files = await read_form(request)
    assert state.media is not None
    samples = await state.media.uploaded(_sources(files))
    mask = samples.pop() if "mask" in files else None
    body, plan = await understand_edit(asking_of(state, scope), raw, samples, mask)
    check_priority(state, scope, body)
    call = await placed_call(state, scope, request.receive, plan, None)
    return await answer(state, scope, body, call, "image_edit")


def _sources(files: Mapping[str, Sequence[bytes]]) -> list[MediaSource]:
    """The pictures, and at last the mask, if there is one. Raises: RequestError."""
    for name in sorted(set(files) - {"image", "mask"}):
        raise RequestError(f"'{name[:100]}' is not supported by this server.", param=name[:100])
    pictures, masks = files.get("image", ()), files.get("mask", ())
    if not pictures:
        raise RequestError("'image' has to be a picture, as a file of a form, or several.", param="image")
    if len(masks) > 1:
        raise RequestError("'mask' has to be one file.", param="mask")
    return [
        *(MediaSource("image", "image", data=data) for data in pictures),
        *(MediaSource("mask", "mask", data=data) for data in masks),
    ]


@router.get(f"{PATH}/{{picture}}", response_class=Response)
async def show_image(request: Request, picture: str) -> Response:
    """A picture that an answer named by its URL."""
    return await kept_file(request, picture, "image")


async def handle(state: ApiState, raw: bytes, scope: Scope, receive: Receive) -> Response:
    """Raises: XylemError."""
    asking = asking_of(state, scope)
    try:
        body, plan = await IMAGES.understand(asking, raw)
    except PipelineNamed as exc:
        if not exc.paints:
            raise
        return await _of_pipeline(state, asking, exc, raw, scope, receive=receive)
    check_priority(state, scope, body)
    other = other_plan(asking, IMAGES, body, plan, raw)
    call = await placed_call(state, scope, receive, plan, other)
    return await answer(state, scope, body, call, "image_generation")


async def _of_pipeline(
    state: ApiState, asking: Asking, pipeline_request: PipelineNamed, raw: bytes, scope: Scope, receive: Receive
) -> Response:
    """Raises: XylemError."""
    conductor = Conductor(state, asking, pipeline_request, EDITS.prefix, scope, receive=receive)
    if pipeline_request.body.stream:
        return ImageStream(partial(conductor.pictures, raw), "image_generation", conductor.in_last)
    body, call = await conductor.pictures(raw)
    with conductor.in_last():
        return await answer(state, scope, body, call, "image_generation")


async def answer(state: ApiState, scope: Scope, body: PicturesRequest, call: Generation, kind: Kind) -> Response:
    """Raises: XylemError."""
    if body.stream:

        async def begun() -> tuple[PicturesRequest, Generation]:
            return body, call

        return ImageStream(begun, kind)
    writer = ImageWriter(call, body)
    async with call:
        if body.response_format == "url":
            files = await writer.files()
            paintings = call.plan.paintings
            urls = [await keep(state, scope, file, painting) for file, painting in zip(files, paintings, strict=True)]
            doc = writer.answer(urls=urls)
        else:
            doc = await writer.whole()
    content = await asyncio.to_thread(orjson.dumps, doc)  # some megabytes
    return Response(content, headers=call.headers(), media_type="application/json")
