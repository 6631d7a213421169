"""GET /v1/models, /live, /health, /ready, /metrics, /requests, /version."""

from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import orjson
from fastapi import APIRouter, Request
from msgspec.structs import asdict
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import PlainTextResponse, Response

from app.anthropic.model_cards import anthropics_card, anthropics_list
from app.api.http.answer_schemas import ModelCard, ModelList
from app.api.http.error_shape import is_anthropics
from app.api.operations.deployment_metrics import DeploymentMetrics
from app.api.state import ApiState, state_of
from app.dispatch.models import Model
from app.errors import ModelNotFound, StoreDown
from app.ids import RequestId
from app.messages import Lease
from app.pools import Alias

router = APIRouter()
_JSON = "application/json"
_DEPLOYMENT = DeploymentMetrics()
_NOT_READY: dict[int | str, dict[str, Any]] = {503: {"content": {"application/json": {}}, "description": "Not ready"}}


def _card(model: Model, created: int, alias: Alias | None = None) -> dict[str, Any]:
    """`alias`: what its name stands for, if that is no model's own."""
    return ({} if alias is None else {"alias": alias.model_dump()}) | {
        "id": model.name,
        "object": "model",
        "created": created,
        "owned_by": "xylem",
        "max_model_len": model.context_len,
        "dialect": model.dialect,
        "capabilities": {
            "chat": model.task == "generate" and model.tokenizer.template is not None,
            "tools": model.calls_tools,
            "reasoning": model.writing.reasons,
            "pictures": model.pictures is not None,
        },
        "task": model.task,
        "sampling_defaults": {**model.defaults},
        "parent": model.parent,
    }


@router.get("/v1/models", response_model=ModelList, response_model_exclude_unset=True)
async def models(request: Request) -> dict[str, Any] | Response:
    """The models and aliases, whether or not a worker is up. In Anthropic's shape with `anthropic-version`."""
    state = state_of(request)
    if is_anthropics(request.scope):
        return Response(orjson.dumps(anthropics_list(_named(state).values(), state.started)), media_type=_JSON)
    table = state.aliases.table
    return {"object": "list", "data": [_card(m, state.started, table.get(m.name)) for m in _named(state).values()]}


def _named(state: ApiState) -> dict[str, Model]:
    """All models by name; an alias shows its primary model, or the fallback where that one is gone."""
    stands_for = {name: state.models.get(state.aliases.primary(name)) for name in state.aliases.table}
    return state.models | {name: replace(model, name=name) for name, model in stands_for.items() if model}


@router.get("/v1/models/{name:path}", response_model=ModelCard, response_model_exclude_unset=True)
async def one_model(request: Request, name: str) -> dict[str, Any] | Response:
    state = state_of(request)
    if name not in _named(state):
        await state.look()
    model = _named(state).get(name)
    if model is None:
        raise ModelNotFound(f"The model '{name}' is not served here.", param="model")
    if is_anthropics(request.scope):
        return Response(orjson.dumps(anthropics_card(model, state.started)), media_type=_JSON)
    return _card(model, state.started, state.aliases.table.get(name)) | {"pools": await _served_by(state, model)}


async def _served_by(state: ApiState, model: Model) -> list[dict[str, Any]]:
    """The model's pools with their live workers' engines; without Redis, no worker is known."""
    names = [*model.pools, *model.prefill_pools]
    try:
        leases = await state.fleet.live(names)
    except StoreDown:
        leases = []
    shown = []
    for name in names:
        pool, workers = state.pools[name], [lease.worker for lease in leases if lease.worker.pool == name]
        shown.append(
            {
                "pool": name,
                "engine": pool.engine,
                "versions": sorted({worker.engine_version for worker in workers} - {""}),
                "workers": len(workers),
                "task": pool.task,
                "role": pool.role,
                "endpoints": pool.endpoints,
                "capabilities": {
                    "kv_events": any(worker.kv_events for worker in workers),
                    "kv_transfer": any(worker.block_bytes for worker in workers),
                    "grammars": sorted({kind for worker in workers for kind in worker.grammars}),
                    "ranks": max((worker.ranks for worker in workers), default=0),
                    "seeds": any(worker.seeds for worker in workers),
                    "adapters": max((worker.max_adapters for worker in workers), default=0),
                },
            }
        )
    return shown


@router.get("/live")
async def live() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/health", responses=_NOT_READY)
@router.get("/ready", responses=_NOT_READY)
async def ready(request: Request) -> Response:
    """200 if Redis answers, tokens can be received, and at least one worker is live, here or elsewhere; else 503."""
    state = state_of(request)
    models = state.models.values()
    try:
        leases = await state.fleet.live(list(state.pools))
        redis = True
    except StoreDown:
        leases, redis = [], False
    workers = {m.name: sum(_answers(lease, m) for lease in leases) for m in models}
    subscribed = state.inbox.subscribed.is_set()
    ok = redis and subscribed and (any(workers.values()) or state.cells.load(list(state.pools)).capacity > 0)
    body = {"ready": ok, "redis": redis, "subscribed": subscribed, "workers": workers}
    if cells := state.cells.states():
        body["cells"] = {name: asdict(cell) for name, cell in cells.items()}
    return Response(orjson.dumps(body), 200 if ok else 503, media_type="application/json")


def _answers(lease: Lease, model: Model) -> bool:
    if lease.worker.pool not in model.pools or lease.draining:
        return False
    return model.adapter is None or model.adapter in lease.worker.adapters


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """For Prometheus. Without Redis, the metrics of batches and workers are missing."""
    with suppress(StoreDown):
        await _DEPLOYMENT.read(state_of(request))
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)


@router.get("/requests/{request}")
async def timeline(http: Request, request: str) -> dict[str, Any]:
    """When each prompt of a request was placed, computed, handed over and answered, and by whom; or its state so far.

    Only requests of the same API key, at any replica; the admin key sees all.
    """
    state = state_of(http)
    key = state.api_keys.sees(http.scope) if state.settings.require_keys else None
    return await state.lookup.find(RequestId(request), key)


@router.get("/version")
async def show_version() -> dict[str, str]:
    return {"version": version("xylem-serve")}
