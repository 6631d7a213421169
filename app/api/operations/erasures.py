"""Erases all that was made with a key or by a tenant, and gives a tenant KV of its own; for operators."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Request
from msgspec.structs import replace
from pydantic import Field

from app.api.intake.request_body import collect
from app.api.operations.admin import Admin
from app.api.operations.answer_types import ErasureCard, ErasureList, Isolation
from app.api.operations.audited_route import AuditedRoute
from app.api.state import ApiState
from app.errors import KeyNotFound, TenantNotFound, XylemError
from app.ids import TenantId
from app.schemas.body import Body
from app.schemas.validation import parse
from app.store import clock
from app.tenants.erasure_store import ErasureStore, Found
from app.tenants.erasures import Erasure, Kind

router = APIRouter(prefix="/admin", tags=["erasures"], route_class=AuditedRoute)
_LOOK_S = 0.1
_MOST = 4096  # bytes of a body


class ErasureRequest(Body):
    clear_kv: bool = False  # all workers forget all KV in their engines and hosts' memories, also other tenants'
    wait_s: Annotated[float, Field(ge=0, le=300)] = 10.0  # for its end, before the answer


class IsolationRequest(Body):
    isolated: bool


@router.post("/keys/{key:path}/erase", openapi_extra=ErasureRequest.openapi())
async def erase_key(request: Request, state: Admin, key: str) -> ErasureCard:
    """Revokes a key, named by its name or id, and removes all that was made with it. Repeated, it goes on."""
    return await _erase(request, state, "key", key, await _store(state).of_key(key))


@router.post("/tenants/{tenant}/erase", openapi_extra=ErasureRequest.openapi())
async def erase_tenant(request: Request, state: Admin, tenant: str) -> ErasureCard:
    """Removes a tenant, all its keys, and all that was made with these. Repeated, it goes on."""
    return await _erase(request, state, "tenant", tenant, await _store(state).of_tenant(TenantId(tenant)))


@router.get("/erasures")
async def list_erasures(state: Admin) -> ErasureList:
    """Erasures under way, and those of the last day."""
    store = _store(state)
    removed_blocks = await store.removed_kv()
    erasures = sorted(await store.all(), key=lambda erasure: erasure.began)
    return {"object": "list", "data": [_shown(state, erasure, removed_blocks) for erasure in erasures]}


@router.post("/tenants/{tenant}/isolation", openapi_extra=IsolationRequest.openapi())
async def isolate_tenant(request: Request, state: Admin, tenant: str) -> Isolation:
    """Whether a tenant's prompts share KV with other tenants'. For all API replicas within two seconds."""
    body = parse(IsolationRequest, await collect(request.scope, request.receive, _MOST))
    store = _store(state)
    if await store.of_tenant(TenantId(tenant)) is None:
        raise _unknown("tenant", tenant)
    await store.isolate(TenantId(tenant), isolated=body.isolated)
    return {"object": "tenant", "name": tenant, "isolated": body.isolated}


async def _erase(request: Request, state: ApiState, kind: Kind, name: str, erasures: Found | None) -> ErasureCard:
    body = parse(ErasureRequest, await collect(request.scope, request.receive, _MOST) or b"{}")
    store, before = _store(state), await _store(state).find(kind, name)
    if erasures is None and before is None:
        raise _unknown(kind, name)
    if before is not None and before.given_up:
        before = replace(before, given_up="")
        await store.put(before)
    over = before is None or _shown(state, before, await store.removed_kv())["status"] == "done"
    if over and erasures is not None:
        labels = await store.labels(erasures.tenants)
        counts = {"keys": erasures.valid} if erasures.valid else {}
        new_erasure = Erasure(kind, name, clock.now(), erasures.owners, labels, removed=counts, clear=body.clear_kv)
        await store.put(new_erasure)  # first: whatever happens from here on, it will be carried out
        await store.revoke(new_erasure.owners)
        await store.change_salts(new_erasure)
    end = asyncio.get_running_loop().time() + body.wait_s
    while True:
        if (erasure := await store.find(kind, name)) is None:
            raise _unknown(kind, name)
        answer = _shown(state, erasure, await store.removed_kv())
        if answer["status"] != "running" or asyncio.get_running_loop().time() > end:
            return answer
        await asyncio.sleep(_LOOK_S)


def _shown(state: ApiState, erasure: Erasure, items: dict[str, int]) -> ErasureCard:
    """`items`: blocks of stores."""
    kv = {
        pool: [items.get(f"{label}|{pool}") for label in erasure.labels]
        for pool, pool_spec in state.pools.items()
        if erasure.labels and pool_spec.tiers is not None and pool_spec.tiers.disk is not None
    }
    is_done = erasure.clean and all(count is not None for counts in kv.values() for count in counts)
    return {
        "object": "erasure",
        "kind": erasure.kind,
        "name": erasure.name,
        "status": "failed" if erasure.given_up else "done" if is_done else "running",
        "reason": erasure.given_up or None,
        "began": erasure.began,
        "removed": erasure.removed,
        "kv_blocks": {p: None if None in counts else sum(map(int, counts)) for p, counts in kv.items()},  # type: ignore[arg-type]
        "kv_not_cleared": erasure.refused,
    }


def _unknown(kind: Kind, name: str) -> XylemError:
    missing = KeyNotFound if kind == "key" else TenantNotFound
    return missing(f"There is no {kind} '{name[:100]}'.", param=kind)


def _store(state: ApiState) -> ErasureStore:
    return ErasureStore(state.wire, state.keys)
