"""LoRA adapters, for operators; and in vLLM's shapes. With `XYLEM_ADMIN_KEY`, or on loopback only."""

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from app.adapters.progress import Progress, progress
from app.api.http.answered import TEXT
from app.api.intake.request_body import read_short
from app.api.operations import adapter_changes as changes
from app.api.operations.admin import Admin
from app.api.operations.answer_types import AdapterCard, AdapterList, Removed
from app.api.operations.audited_route import AuditedRoute
from app.api.state import ApiState
from app.errors import AdapterFailed, RequestError
from app.ids import PoolId
from app.messages.wanted import Adapter
from app.openai.adapter_schemas import LoadLora, NewAdapter, NewVersion, UnloadLora

router = APIRouter(tags=["adapters"], route_class=AuditedRoute)


def _card(adapter: Adapter, progress: Progress) -> AdapterCard:
    return {
        "name": adapter.name,
        "version": adapter.version,
        "model": adapter.model,
        "source": adapter.source,
        "sha256": adapter.sha256,
        "pools": list(adapter.pools),
        "min_workers": adapter.min_workers,
        "created": adapter.created,
        "workers": progress.workers,
        "failed": progress.failed,
        "missing": progress.missing,
    }


@router.get("/admin/loras")
async def list_adapters(state: Admin) -> AdapterList:
    """All adapters, who has them, and why others don't."""
    adapters = await changes.registry(state).all()
    leases = await state.fleet.live(list(state.pools))
    standings = [
        (adapters[name], progress(adapters[name], leases, changes.pools_of(state, adapters[name])))
        for name in sorted(adapters)
    ]
    return {"data": [_card(adapter, stands) for adapter, stands in standings]}


@router.post("/admin/loras", openapi_extra=NewAdapter.openapi())
async def add_adapter(request: Request, state: Admin) -> AdapterCard:
    """Answers when as many workers of each pool as it wants have it, of those that live there by then.

    `failed` says why others could not load it, and `missing` how many fewer than wanted have it, by pool: those don't
    live yet, or failed. They load it when they start.

    The same once more changes nothing; another one of that name is refused.
    """
    body = await read_short(request, NewAdapter)
    pools = [PoolId(pool) for pool in body.pools]
    adapter = Adapter(body.name, 0, body.model, body.source, body.sha256, pools=pools, min_workers=body.min_workers)
    return _card(*await changes.add(state, adapter))


@router.post("/admin/loras/{name}", openapi_extra=NewVersion.openapi())
async def swap_adapter(request: Request, state: Admin, name: str) -> AdapterCard:
    """Other weights under the same name. From the answer on, nothing begins with the old ones."""
    body = await read_short(request, NewVersion)
    return _card(*await changes.swap(state, name, body.source, body.sha256))


@router.delete("/admin/loras/{name}")
async def remove_adapter(state: Admin, name: str) -> Removed:
    """Removes an adapter: from the answer on, nothing begins with it. What runs is finished."""
    await changes.remove(state, name)
    return {"name": name, "removed": True}


@router.post("/v1/load_lora_adapter", response_class=Response, responses=TEXT, openapi_extra=LoadLora.openapi())
async def load_lora_adapter(request: Request, state: Admin) -> Response:
    """vLLM's: on all workers of the model, for good."""
    body = await read_short(request, LoadLora)
    name = body.lora_name
    adapters = await changes.registry(state).all()
    if body.load_inplace and name in adapters:
        _adapter, standing = await changes.swap(state, name, body.lora_path, body.sha256)
    else:
        model = body.model or _only_model(state)
        _adapter, standing = await changes.add(state, Adapter(name, 0, model, body.lora_path, body.sha256))
    if standing.failed and not standing.workers:
        if name not in adapters:
            await changes.remove(state, name)
        raise AdapterFailed(f"The adapter '{name}' can't be loaded: {next(iter(standing.failed.values()))}")
    return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")


@router.post("/v1/unload_lora_adapter", response_class=Response, responses=TEXT, openapi_extra=UnloadLora.openapi())
async def unload_lora_adapter(request: Request, state: Admin) -> Response:
    """vLLM's: from all workers."""
    body = await read_short(request, UnloadLora)
    await changes.remove(state, body.lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def _only_model(state: ApiState) -> str:
    """Raises: RequestError."""
    models = sorted({pool.model for pool in state.pools.values() if pool.task == "generate"})
    if len(models) != 1:
        raise RequestError(f"Several models are served: name one as 'model': {', '.join(models)}.", param="model")
    return models[0]
