"""The steps from an inference request to its answer, which HTTP and gRPC share."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version

from starlette.types import Receive, Scope

from app.api.http import request_trace
from app.api.intake.calls import placed_call
from app.api.intake.client_limits import check_priority
from app.api.openai.alias_turn import other_plan
from app.api.operations.health import readiness
from app.api.state import ApiState, asking_of
from app.dispatch.answering.generation import Generation
from app.dispatch.asking import Asking
from app.dispatch.models.models import Model
from app.endpoint_registry import CHAT, CLASSIFY, EMBEDDINGS, IMAGES, SCORE, TEXT, Endpoint
from app.errors import RequestError, XylemError
from app.kserve.answer_types import Model as ModelMetadata
from app.kserve.answer_types import Server
from app.kserve.kinds import Kind
from app.kserve.requests import InferRequest, check_version, metadata
from app.tenants.limits import check_model

_ENDPOINTS: Mapping[Kind, Endpoint] = {
    "text": TEXT,
    "chat": CHAT,
    "embed": EMBEDDINGS,
    "score": SCORE,
    "classify": CLASSIFY,
    "image": IMAGES,
}


def server() -> Server:
    """Its metadata."""
    extensions = ["generate", "binary_tensor_data", "model_repository", "statistics"]
    return {"name": "xylem", "version": version("xylem-serve"), "extensions": extensions}


async def model_of(asking: Asking, name: str) -> Model:
    """The model of that name or alias. Raises: ModelNotFound, RequestError."""
    check_model(asking.within, name)
    state = asking.serving
    if name not in state.models and name not in state.aliases.table:
        await state.look()  # another replica may have just added it
    target = state.aliases.primary(name) if name in state.aliases.table else name
    model = state.models.get(target)
    return model if model is not None else asking.find_model(name)


async def served_by(state: ApiState, model: Model) -> bool:
    """Whether this replica is ready and a live worker serves the model."""
    status = await readiness(state)
    return bool(status["ready"] and status["workers"].get(model.name))


async def metadata_of(asking: Asking, name: str, of_version: str) -> ModelMetadata:
    """Raises: ModelNotFound."""
    check_version(name, of_version)
    return metadata(name, (await model_of(asking, name)).task)


async def begin(
    state: ApiState, scope: Scope, receive: Receive, request: InferRequest, *, streams: bool = False
) -> Generation:
    """The answer to a request, to be entered. `streams`: whether it is sent in pieces. Raises: XylemError."""
    asking = asking_of(state, scope)
    task = (await model_of(asking, request.model)).task
    kind = request.kind(task)
    endpoint = _ENDPOINTS[kind]
    raw = await asyncio.to_thread(request.as_openai, kind) if kind == "chat" else request.as_openai(kind)
    if not streams and task == "generate" and request.streams():
        raise RequestError("An answer in pieces needs ModelStreamInfer of gRPC, or generate_stream.", param="streaming")
    body, plan = await endpoint.understand(asking, raw)
    check_priority(state, scope, body)
    return await placed_call(state, scope, receive, plan, other_plan(asking, endpoint, body, plan, raw))


@contextmanager
def traced(state: ApiState, scope: Scope, route: str) -> Iterator[None]:
    """Begins a request's trace under the path of its route, which has no model's name; an error ends it."""
    request_trace.begin_at(state.tracer, route, scope)
    try:
        yield
    except XylemError as exc:
        request_trace.end(scope, exc.status, exc.code)
        raise
