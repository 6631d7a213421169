"""GET /v1/models, /live, /health, /ready, /metrics, /sd, /requests, /version."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version

import orjson
from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from app.anthropic.answer_types import AnthropicModel, AnthropicModels
from app.anthropic.model_cards import anthropics_card, anthropics_list
from app.api.http.answered import TEXT, answers
from app.api.http.error_shape import is_anthropics
from app.api.operations.answer_types import (
    Live,
    ModelCard,
    ModelList,
    ModelPrice,
    Readiness,
    ScrapeTarget,
    ServedBy,
    Version,
)
from app.api.operations.deployment_metrics import DeploymentMetrics
from app.api.state import ApiState, state_of
from app.dispatch.models.models import Model
from app.dispatch.observing.timeline_types import RequestTimeline
from app.errors import Forbidden, ModelNotFound, StoreDown
from app.ids import BATCH_QUEUE, PoolId, RequestId
from app.messages.lease import Lease
from app.messages.media import MediaKind
from app.openai.efforts import known_efforts
from app.openai.template_habits import settable
from app.tenants.limits import may_ask
from app.tenants.records import Client, decode_price

router = APIRouter(tags=["service"])
_JSON = "application/json"
_DEPLOYMENT = DeploymentMetrics()
_READINESS = answers(Readiness) | {503: {"model": Readiness, "description": "Not ready"}}


def _takes(state: ApiState, model: Model, kind: MediaKind, known: bool) -> bool:
    """`known`: whether the model's files say how. Else its engines do."""
    if known:
        return state.fleet.takes(model.pools, kind)
    expansions = None if state.media is None else state.media.expansions
    return model.task == "generate" and expansions is not None and kind in expansions.known_signs(model.pools)


def _card(state: ApiState, model: Model) -> ModelCard:
    """A model's card, with what its name stands for, if that is no model's own."""
    alias, pipeline = state.aliases.table.get(model.name), state.pipelines.get(model.name)
    stages = [] if pipeline is None else [stage.model for stage in pipeline.stages]
    hears = any(state.models[stage].task == "transcribe" for stage in stages)  # one writes down speech
    card: ModelCard = {
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
    if alias is not None:
        card["alias"] = alias
    if pipeline is not None:
        card["pipeline"] = stages
    return card


@router.get("/v1/models", response_model=ModelList | AnthropicModels)
async def list_models(request: Request) -> ModelList | Response:
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


@router.get("/v1/models/{name:path}", response_model=ModelCard | AnthropicModel)
async def show_model(request: Request, name: str) -> ModelCard | Response:
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
    if "pipeline" not in card:
        generates, tokenizer = model.task == "generate", model.tokenizer
        card["chat_template_kwargs"] = settable(tokenizer) if generates else []
        efforts = await asyncio.to_thread(known_efforts, tokenizer) if generates else []
        card["reasoning_efforts"] = efforts
    card["pools"] = await _served_by(state, pools)
    card["price"] = await _price(state, state.aliases.primary(name), model.parent)
    return card


@router.delete("/v1/models/{name:path}", response_class=Response)
async def delete_model(request: Request, name: str) -> None:
    """Refused: models are declared in the pools file, and adapters removed below `/admin/loras`."""
    state = state_of(request)
    client = state.api_keys.client(request.scope)
    if name not in _named(state, client) | _pipelines(state, client):
        raise ModelNotFound(f"The model '{name}' is not served here.", param="model")
    raise Forbidden(f"The model '{name}' can't be deleted by this API: its operator declares it.")


async def _served_by(state: ApiState, names: Sequence[PoolId]) -> list[ServedBy]:
    """The pools with their live workers' engines; without Redis, no worker is known."""
    try:
        leases = await state.fleet.live(names)
    except StoreDown:
        leases = []
    cards: list[ServedBy] = []
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


async def _price(state: ApiState, name: str, parent: str | None) -> ModelPrice | None:
    """The price by which its requests are charged; None if Redis is away."""
    try:
        (raw,) = await state.wire.execute([("HMGET", state.keys.prices(), name, parent or name)])
    except StoreDown:
        return None
    price = next((decode_price(one) for one in raw if one), None)
    if price is None:
        return None
    return {"input": price.input, "cached_input": price.cached_input, "output": price.output, "image": price.image}


@router.get("/live")
async def show_liveness() -> Live:
    """The process answers."""
    return {"status": "ok"}


@router.get("/health", name="show_health", responses=_READINESS)
@router.get("/ready", responses=_READINESS)
async def show_readiness(request: Request) -> Response:
    """200 if Redis answers, tokens can be received, and at least one worker is live, here or elsewhere; else 503."""
    body = await readiness(state_of(request))
    return Response(orjson.dumps(body), 200 if body["ready"] else 503, media_type="application/json")


async def readiness(state: ApiState) -> Readiness:
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
    body: Readiness = {"ready": ok, "redis": redis, "subscribed": is_subscribed, "workers": workers}
    if cells := state.cells.states():
        body["cells"] = {name: {"reachable": cell.reachable, "requests": cell.requests} for name, cell in cells.items()}
    return body


def _answers(lease: Lease, model: Model) -> bool:
    if lease.worker.pool not in model.pools or lease.draining:
        return False
    return model.adapter is None or model.adapter in lease.worker.adapters


@router.get("/metrics", response_class=Response, responses=TEXT)
async def show_metrics(request: Request) -> Response:
    """Metrics for Prometheus. Without Redis, those of batches and workers are missing."""
    return Response(await _DEPLOYMENT.shown(state_of(request)), media_type=CONTENT_TYPE_LATEST)


@router.get("/sd")
async def list_scrape_targets(request: Request) -> list[ScrapeTarget]:
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


@router.get("/requests/{request}", responses=answers(RequestTimeline))
async def show_timeline(http: Request, request: str) -> Response:
    """Shows when and by whom a request's prompts were placed, computed, handed over and answered; or its state so far.

    Only requests of the same API key, at any replica; the admin key sees all.
    """
    state = state_of(http)
    key = state.api_keys.sees(http.scope) if state.settings.require_keys else None
    return Response(orjson.dumps(await state.lookup.find(RequestId(request), key)), media_type=_JSON)


@router.get("/version")
async def show_version() -> Version:
    return {"version": version("xylem-serve")}
