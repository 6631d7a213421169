"""The Open Inference Protocol over HTTP: /v2, /v2/health, /v2/models."""

import asyncio
from base64 import b64encode
from collections.abc import Sequence
from functools import partial
from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from app import json_bytes
from app.api.http.answered import Responses, answered, answers, refused
from app.api.intake.request_body import collect
from app.api.kserve.inference import begin, metadata_of, model_of, served_by, server, traced
from app.api.kserve.repository import statistics_of
from app.api.openai.sse_response import EventStream
from app.api.operations.health import readiness
from app.api.state import ApiState, asking_of, state_of
from app.errors import RequestError
from app.kserve.answer_types import GeneratedText, InferenceRefusal, Inferred, Model, Output, Server, Statistics
from app.kserve.answers import GenerateWriter, whole
from app.kserve.requests import VERSION, GenerateBody, InferBody, InferRequest, check_version
from app.kserve.tensors import PICTURE, Tensor
from app.schemas.validation import parse_off_loop

router = APIRouter(prefix="/v2", responses=refused(InferenceRefusal), tags=["inference"])

_NOT_READY: Responses = {503: {"description": "Not ready"}}
_INFERRED, _GENERATED = answers(Inferred), answers(GeneratedText)
_STREAMED = answered(GeneratedText, GeneratedText, InferenceRefusal)
_HEADER_LENGTH = "inference-header-content-length"
_DIGITS = 18  # of a length, at most
_PIECE = 2**14  # values
_MODEL = "/models/{name:path}"
_VERSION = _MODEL + "/versions/{version}"  # the lower decorator, so that it is tried first: names may have slashes


@router.get("")
async def server_metadata() -> Server:
    """The server's name, version and extensions."""
    return server()


@router.get("/health/live", response_class=Response)
async def server_live() -> Response:
    """The process answers."""
    return Response()


@router.get("/health/ready", response_class=Response, responses=_NOT_READY)
async def server_ready(request: Request) -> Response:
    """Answers as `/ready` does, without a body."""
    return Response(status_code=200 if (await readiness(state_of(request)))["ready"] else 503)


@router.get(_MODEL + "/ready", response_class=Response, responses=_NOT_READY)
@router.get(_VERSION + "/ready", response_class=Response, responses=_NOT_READY, name="model_ready_of_version")
async def model_ready(request: Request, name: str, version: str = "") -> Response:
    """200 if a live worker serves the model; else 503."""
    state = state_of(request)
    check_version(name, version)
    return Response(
        status_code=200 if await served_by(state, await model_of(asking_of(state, request.scope), name)) else 503
    )


@router.get("/models/stats")
async def all_statistics(request: Request) -> Statistics:
    """Counts of each model's requests at this replica."""
    return {"model_stats": await statistics_of(state_of(request), request.scope)}


@router.get(_MODEL + "/stats")
@router.get(_VERSION + "/stats", name="model_statistics_of_version")
async def model_statistics(request: Request, name: str, version: str = "") -> Statistics:
    """Counts of the model's requests at this replica."""
    return {"model_stats": await statistics_of(state_of(request), request.scope, name, version)}


@router.get(_MODEL)
@router.get(_VERSION, name="model_metadata_of_version")
async def model_metadata(request: Request, name: str, version: str = "") -> Model:
    """The model's inputs and outputs."""
    return await metadata_of(asking_of(state_of(request), request.scope), name, version)


@router.post(_MODEL + "/infer", openapi_extra=InferBody.openapi(), responses=_INFERRED)
@router.post(_VERSION + "/infer", openapi_extra=InferBody.openapi(), responses=_INFERRED, name="infer_of_version")
async def infer(request: Request, name: str, version: str = "") -> Response:
    """A whole answer: a text, embeddings, scores or classes of texts, or pictures."""
    state = state_of(request)
    with traced(state, request.scope, "/v2/models/{name}/infer"):
        raw = await collect(request.scope, request.receive, state.settings.max_body)
        length = _header_length(request, raw)
        body = await parse_off_loop(InferBody, raw[:length])
        infer_request = await state.off_loop(raw, lambda: body.request(name, version, raw[length:]))
        async with await begin(state, request.scope, request.receive, infer_request) as call:
            outputs = await whole(call, infer_request)
    write = partial(_written, infer_request, body, outputs, call.headers())
    return await asyncio.to_thread(write) if call.plan.inputs or call.plan.paintings else write()


@router.post(_MODEL + "/generate", openapi_extra=GenerateBody.openapi(), responses=_GENERATED)
@router.post(
    _VERSION + "/generate", openapi_extra=GenerateBody.openapi(), responses=_GENERATED, name="generate_of_version"
)
async def generate(request: Request, name: str, version: str = "") -> Response:
    """A text's continuation, whole."""
    state = state_of(request)
    with traced(state, request.scope, "/v2/models/{name}/generate"):
        generate_request = await _generate_request(state, request, name, version)
        async with await begin(state, request.scope, request.receive, generate_request) as call:
            answer = await GenerateWriter(call, generate_request).whole()
    return Response(json_bytes.dumps(answer), headers=call.headers(), media_type="application/json")


@router.post(_MODEL + "/generate_stream", openapi_extra=GenerateBody.openapi(), responses=_STREAMED)
@router.post(
    _VERSION + "/generate_stream",
    openapi_extra=GenerateBody.openapi(),
    responses=_STREAMED,
    name="generate_stream_of_version",
)
async def generate_stream(request: Request, name: str, version: str = "") -> Response:
    """A text's continuation as server-sent events; the last has `finish_reason`, or `error`."""
    state = state_of(request)
    with traced(state, request.scope, "/v2/models/{name}/generate_stream"):
        generate_request = await _generate_request(state, request, name, version)
        start = partial(begin, state, request.scope, request.receive, generate_request, streams=True)
        return EventStream(start, lambda call: GenerateWriter(call, generate_request))


async def _generate_request(state: ApiState, request: Request, name: str, version: str) -> InferRequest:
    """Raises: XylemError."""
    if (await model_of(asking_of(state, request.scope), name)).task != "generate":
        raise RequestError(f"The model '{name}' generates no text: it takes /v2/models/{name}/infer.", param="model")
    raw = await collect(request.scope, request.receive, state.settings.max_body)
    return (await parse_off_loop(GenerateBody, raw)).request(name, version)


def _header_length(request: Request, raw: bytes) -> int:
    """Bytes of JSON before the inputs' own. Raises: RequestError."""
    header = request.headers.get(_HEADER_LENGTH)
    if header is None:
        return len(raw)
    if not (header.isascii() and header.isdigit() and len(header) <= _DIGITS) or int(header) > len(raw):
        raise RequestError(f"'Inference-Header-Content-Length' is {header[:64]!r} in a request of {len(raw)} bytes.")
    return int(header)


def _list(values: Sequence[Any]) -> bytes:
    """JSON, written in pieces, so that other threads run between: vectors may be millions of numbers."""
    pieces = (values[start : start + _PIECE] for start in range(0, len(values), _PIECE))
    return b"[%b]" % b",".join(json_bytes.dumps(list(piece))[1:-1] for piece in pieces)


def _written(request: InferRequest, body: InferBody, outputs: list[Tensor], headers: dict[str, str]) -> Response:
    output_docs, behind = list[Output](), list[bytes]()
    for one in outputs:
        assert one.datatype != "BOOL"  # which only inputs are
        out: Output = {"name": one.name, "datatype": one.datatype, "shape": one.shape}
        if body.binary_outputs(one.name):
            behind.append(one.raw())
            out["parameters"] = {"binary_data_size": len(behind[-1])}
        else:
            files = [b64encode(file).decode() for file in one.values] if one.name == PICTURE else one.values
            data: Any = orjson.Fragment(_list(files))
            out["data"] = data
        output_docs.append(out)
    answer: Inferred = {
        "model_name": request.model,
        "model_version": VERSION,
        "id": request.id,
        "outputs": output_docs,
    }
    if not request.id:
        del answer["id"]
    head = json_bytes.dumps(answer)
    if not behind:
        return Response(head, headers=headers, media_type="application/json")
    headers = {**headers, _HEADER_LENGTH: str(len(head))}
    return Response(b"".join([head, *behind]), headers=headers, media_type="application/octet-stream")
