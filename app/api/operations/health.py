"""GET /v1/models, /live, /health, /ready, /metrics, /sd, /requests, /version."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import orjson
from fastapi import APIRouter, Request
from msgspec.structs import asdict
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import PlainTextResponse, Response

from app.anthropic.model_cards import anthropics_card, anthropics_list
from app.api.http.answer_schemas import ModelCard, ModelList, ScrapeTarget
from app.api.http.error_shape import is_anthropics
from app.api.operations.deployment_metrics import DeploymentMetrics
from app.api.state import ApiState, state_of
from app.dispatch.models.models import Model
from app.errors import Forbidden, ModelNotFound, StoreDown
from app.ids import BATCH_QUEUE, PoolId, RequestId
from app.messages.lease import Lease
from app.messages.media import MediaKind
from app.openai.efforts import known_efforts
from app.openai.template_habits import settable
from app.tenants.limits import may_ask
from app.tenants.records import Client

router = APIRouter()
_JSON = "application/json"
_DEPLOYMENT = DeploymentMetrics()
_NOT_READY: dict[int | str, dict[str, Any]] = {503: {"content": {"application/json": {}}, "description": "Not ready"}}


def _takes(state: ApiState, model: Model, kind: MediaKind, known: bool) -> bool:
    """`known`: whether the model's files say how. Else its engines do."""
    if known:
        return state.fleet.takes(model.pools, kind)
    expansions = None if state.media is None else state.media.expansions
    return model.task == "generate" and expansions is not None and kind in expansions.known_signs(model.pools)


def _card(state: ApiState, model: Model) -> dict[str, Any]:
    """A model's card, with what its name stands for, if that is no model's own."""
    alias, pipeline = state.aliases.table.get(model.name), state.pipelines.get(model.name)
    stands_for: dict[str, Any] = {}
    hears = False  # a stage writes down speech
    if alias is not None:
        stands_for["alias"] = alias.model_dump()
    if pipeline is not None:
        stands_for["pipeline"] = [stage.model for stage in pipeline.stages]
        hears = any(state.models[stage.model].task == "transcribe" for stage in pipeline.stages)
    return stands_for | {
        "id": model.name,
        "object": "model",
        "created": state.started,
        "owned_by": "xylem",
        "max_model_len": model.context_len,
        "dialect": model.dialect,
        "capabilities": {
            "chat": model.task == "generate" and model.tokenizer.template is not None,
            "tools": model.calls_tools,
            "reasoning": model.writing.reasons,
            "pictures": _takes(state, model, "image", model.pictures is not None),
            "videos": _takes(state, model, "image" if model.takes_frames else "video", model.takes_frames),
            "sound": hears or _takes(state, model, "audio", model.sounds is not None),
        },
        "task": model.task,
        "sampling_defaults": {**model.defaults},
        "parent": model.parent,
    }


@router.get("/v1/models", response_model=ModelList, response_model_exclude_unset=True)
async def models(request: Request) -> dict[str, Any] | Response:
    """The models, aliases and pipelines, whether or not a worker is up. In Anthropic's shape with `anthropic-version`.

    Anthropic's has no pipelines: /v1/messages serves none.
    """
    state = state_of(request)
    client = state.api_keys.client(request.scope)
    models_by_name = _named(state, client)
    if is_anthropics(request.scope):
        return Response(orjson.dumps(anthropics_list(models_by_name.values(), state.started)), media_type=_JSON)
    listed_models = (*models_by_name.values(), *_pipelines(state, client).values())
    return {"object": "list", "data": [_card(state, model) for model in listed_models]}


def _named(state: ApiState, client: Client) -> dict[str, Model]:
    """All models by name; an alias shows its primary model, or the fallback where that one is gone."""
    stands_for = {name: state.models.get(state.aliases.primary(name)) for name in state.aliases.table}
    return _allowed(client, state.models | {name: replace(m, name=name) for name, m in stands_for.items() if m})


def _pipelines(state: ApiState, client: Client) -> dict[str, Model]:
    """Pipelines by name; each shows its last model."""
    last = {name: state.models[pipeline.stages[-1].model] for name, pipeline in state.pipelines.items()}
    return _allowed(client, {name: replace(model, name=name) for name, model in last.items()})


def _allowed(client: Client, models: dict[str, Model]) -> dict[str, Model]:
    """Models that the client may ask for."""
    return {name: model for name, model in models.items() if may_ask(client.within, name)}


@router.get("/v1/models/{name:path}", response_model=ModelCard, response_model_exclude_unset=True)
async def one_model(request: Request, name: str) -> dict[str, Any] | Response:
    state = state_of(request)
    client = state.api_keys.client(request.scope)
    models_by_name = _named(state, client) | ({} if is_anthropics(request.scope) else _pipelines(state, client))
    if name not in models_by_name:
        await state.look()
        models_by_name |= _named(state, client)
    model = models_by_name.get(name)
    if model is None:
        raise ModelNotFound(f"The model '{name}' is not served here.", param="model")
    if is_anthropics(request.scope):
        return Response(orjson.dumps(anthropics_card(model, state.started)), media_type=_JSON)
    card = _card(state, model)
    models = [state.models[stage] for stage in dict.fromkeys(card["pipeline"])] if "pipeline" in card else [model]
    pools = [pool for one in models for pool in (*one.pools, *one.prefill_pools)]
    pipeline = "pipeline" in card
    return card | ({} if pipeline else await _template(model)) | {"pools": await _served_by(state, pools)}


async def _template(model: Model) -> dict[str, Any]:
    """Settings of a model's chat template that clients may ask for."""
    if model.task != "generate":
        return {"chat_template_kwargs": [], "reasoning_efforts": []}
    efforts = await asyncio.to_thread(known_efforts, model.tokenizer)
    return {"chat_template_kwargs": settable(model.tokenizer), "reasoning_efforts": efforts}


@router.delete("/v1/models/{name:path}")
async def delete_model(request: Request, name: str) -> None:
    """Refused: models are declared in the pools file, and adapters removed below `/admin/loras`."""
    state = state_of(request)
    client = state.api_keys.client(request.scope)
    if name not in _named(state, client) | _pipelines(state, client):
        raise ModelNotFound(f"The model '{name}' is not served here.", param="model")
    raise Forbidden(f"The model '{name}' can't be deleted by this API: its operator declares it.")


async def _served_by(state: ApiState, names: Sequence[PoolId]) -> list[dict[str, Any]]:
    """The pools with their live workers' engines; without Redis, no worker is known."""
    try:
        leases = await state.fleet.live(names)
    except StoreDown:
        leases = []
    cards = []
    for name in names:
        pool, workers = state.pools[name], [lease.worker for lease in leases if lease.worker.pool == name]
        cards.append(
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
    return cards


@router.get("/live")
async def live() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/health", responses=_NOT_READY)
@router.get("/ready", responses=_NOT_READY)
async def ready(request: Request) -> Response:
    """200 if Redis answers, tokens can be received, and at least one worker is live, here or elsewhere; else 503."""
    body = await readiness(state_of(request))
    return Response(orjson.dumps(body), 200 if body["ready"] else 503, media_type="application/json")


async def readiness(state: ApiState) -> dict[str, Any]:
    """`ready`, what it depends on, and the live workers of each model."""
    models = state.models.values()
    try:
        leases = await state.fleet.live(list(state.pools))
        redis = True
    except StoreDown:
        leases, redis = [], False
    workers = {m.name: sum(_answers(lease, m) for lease in leases) for m in models}
    is_subscribed = state.inbox.subscribed.is_set()
    ok = redis and is_subscribed and (any(workers.values()) or state.cells.load(list(state.pools)).capacity > 0)
    body: dict[str, Any] = {"ready": ok, "redis": redis, "subscribed": is_subscribed, "workers": workers}
    if cells := state.cells.states():
        body["cells"] = {name: asdict(cell) for name, cell in cells.items()}
    return body


def _answers(lease: Lease, model: Model) -> bool:
    if lease.worker.pool not in model.pools or lease.draining:
        return False
    return model.adapter is None or model.adapter in lease.worker.adapters


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Metrics for Prometheus. Without Redis, those of batches and workers are missing."""
    return Response(await _DEPLOYMENT.shown(state_of(request)), media_type=CONTENT_TYPE_LATEST)


@router.get("/sd", response_model=list[ScrapeTarget])
async def workers_to_scrape(request: Request) -> list[dict[str, Any]]:
    """The workers with a port of their own (`XYLEM_WORKER_PORT`), for Prometheus' HTTP service discovery.

    Batch workers are in the pool `batch`.

    Raises: StoreDown; Prometheus then keeps those that it knows.
    """
    state = state_of(request)
    engines = [lease.worker for lease in await state.fleet.live(list(state.pools))]
    engine_targets = [(worker.pool, worker.id, worker.metrics_at) for worker in engines if worker.metrics_at]
    batches = (await state.batch_store.ports()).items()
    return [
        {"targets": [at], "labels": {"pool": pool, "worker": worker}}
        for pool, worker, at in [*engine_targets, *((BATCH_QUEUE, worker, at) for worker, at in batches)]
    ]


@router.get("/requests/{request}")
async def timeline(http: Request, request: str) -> dict[str, Any]:
    """Shows when and by whom a request's prompts were placed, computed, handed over and answered; or its state so far.

    Only requests of the same API key, at any replica; the admin key sees all.
    """
    state = state_of(http)
    key = state.api_keys.sees(http.scope) if state.settings.require_keys else None
    return await state.lookup.find(RequestId(request), key)


@router.get("/version")
async def show_version() -> dict[str, str]:
    return {"version": version("xylem-serve")}
