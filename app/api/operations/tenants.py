"""Tenants, API keys, prices and the audit log, for operators. With `XYLEM_ADMIN_KEY`, or on loopback only."""

from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Request
from msgspec import structs
from pydantic import Field

from app.api.intake.request_body import read_short
from app.api.operations import tenant_schemas as shapes
from app.api.operations.admin import Admin
from app.api.operations.answer_types import Removed
from app.api.operations.audited_route import AuditedRoute
from app.api.operations.tenant_changes import change, merged, registry
from app.errors import KeyNotFound, RequestError, TenantNotFound
from app.ids import TenantId
from app.schemas.body import Query
from app.schemas.validation import parse
from app.store import clock
from app.tenants import audit
from app.tenants.api_keys import check_name, check_tenant, check_tenant_name, digest_of, new_key, new_token, with_limits
from app.tenants.records import DEFAULT, ApiKey, Price, Tenant
from app.tenants.registry import Registry, drop_key, drop_price, drop_tenant, put_key, put_price, put_tenant
from app.tenants.wanted import WantedLimits, WantedTenant, shown, shown_tenant

router = APIRouter(prefix="/admin", tags=["tenants"], route_class=AuditedRoute)


class AuditQuery(Query):
    after: Annotated[str, Field(pattern=r"^[0-9]{1,19}(-[0-9]{1,19})?$")] | None = None  # the id of an entry
    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    order: Literal["asc", "desc"] = "asc"


@router.get("/tenants", response_model=shapes.TenantList, response_model_exclude_unset=True)
async def list_tenants(state: Admin) -> dict[str, Any]:
    """All teams that share the fleet."""
    now = await registry(state)
    tenants = {DEFAULT: Tenant(DEFAULT), **now.tenants}
    return {"data": [_tenant(now, tenants[name]) for name in sorted(tenants)]}


@router.get("/tenants/{tenant}", response_model=shapes.TenantCard, response_model_exclude_unset=True)
async def show_tenant(state: Admin, tenant: str) -> dict[str, Any]:
    """One team, and how many keys it has."""
    now = await registry(state)
    name = check_tenant(now, tenant)
    return _tenant(now, now.tenants.get(name) or Tenant(name))


@router.put(
    "/tenants/{tenant}",
    response_model=shapes.TenantCard,
    response_model_exclude_unset=True,
    openapi_extra=shapes.NewTenant.openapi(),
)
async def replace_tenant(request: Request, state: Admin, tenant: str) -> dict[str, Any]:
    """Makes a team, or gives it other limits: what isn't given is as for a new one."""
    check_tenant_name(tenant)
    body, now = await read_short(request, shapes.NewTenant), await registry(state)
    old = now.tenants.get(TenantId(tenant))
    new_tenant = body.record(tenant, clock.now(), old)
    return _tenant(await change(state, now, [put_tenant(new_tenant)]), new_tenant)


@router.patch(
    "/tenants/{tenant}",
    response_model=shapes.TenantCard,
    response_model_exclude_unset=True,
    openapi_extra=shapes.NewTenant.openapi(),
)
async def change_tenant(request: Request, state: Admin, tenant: str) -> dict[str, Any]:
    """Changes limits. Null takes one away; what isn't given stays."""
    body, now = await read_short(request, shapes.NewTenant), await registry(state)
    name = check_tenant(now, tenant)
    old = now.tenants.get(name) or Tenant(name, clock.now())
    new_tenant = merged(WantedTenant, shown_tenant(old), body).record(name, old.created, old)
    return _tenant(await change(state, now, [put_tenant(new_tenant)]), new_tenant)


@router.delete("/tenants/{tenant}")
async def remove_tenant(state: Admin, tenant: str) -> Removed:
    """Removes a team that has no keys any more."""
    now = await registry(state)
    if TenantId(tenant) not in now.tenants:
        raise TenantNotFound(f"There is no tenant '{tenant[:100]}'.", param="tenant")
    if keys := now.keys_of(TenantId(tenant)):
        raise RequestError(f"'{tenant}' has {len(keys)} keys, such as '{keys[0].name}'.", param="tenant")
    await change(state, now, [drop_tenant(tenant)])
    return {"name": tenant, "removed": True}


@router.get("/keys", response_model=shapes.KeyList, response_model_exclude_unset=True)
async def list_keys(state: Admin) -> dict[str, Any]:
    """All API keys, the oldest first; none is shown itself."""
    now = await registry(state)
    return {"data": [_key(key) for key in sorted(now.keys.values(), key=lambda key: key.created)]}


@router.post(
    "/keys", response_model=shapes.MadeKey, response_model_exclude_unset=True, openapi_extra=shapes.NewKey.openapi()
)
async def make_key(request: Request, state: Admin) -> dict[str, Any]:
    """Makes an API key, which is in this answer only; or takes one that clients have, by its SHA-256."""
    body, now = await read_short(request, shapes.NewKey), await registry(state)
    check_name(body.name)
    token = None if body.sha256 is not None else new_token()
    digest = bytes.fromhex(body.sha256) if body.sha256 is not None else digest_of(token or "")
    api_key = new_key(now, body.name, body.tenant, digest, body.limits(), at=clock.now())
    await change(state, now, [put_key(api_key)])
    await audit.note(
        state, request, "POST /admin/keys", api_key.name, {"tenant": api_key.tenant, **shown(api_key.limits)}
    )
    return _key(api_key) | ({} if token is None else {"key": token})


@router.get("/keys/{key:path}", response_model=shapes.KeyCard, response_model_exclude_unset=True)
async def show_key(state: Admin, key: str) -> dict[str, Any]:
    """One API key, by its name, which is not the key itself."""
    return _key(_known(await registry(state), key))


@router.patch(
    "/keys/{key:path}",
    response_model=shapes.KeyCard,
    response_model_exclude_unset=True,
    openapi_extra=shapes.KeyChanges.openapi(),
)
async def change_key(request: Request, state: Admin, key: str) -> dict[str, Any]:
    """Changes limits, or the team. Null takes a limit away; what isn't given stays."""
    body, now = await read_short(request, shapes.KeyChanges), await registry(state)
    old = _known(now, key)
    tenant = old.tenant if body.tenant is None else check_tenant(now, body.tenant)
    limits = merged(WantedLimits, shown(old.limits), body, without={"tenant"}).limits()
    api_key = with_limits(structs.replace(old, tenant=tenant), limits)
    await change(state, now, [put_key(api_key)])
    return _key(api_key)


@router.delete("/keys/{key:path}")
async def revoke_key(state: Admin, key: str) -> Removed:
    """Makes a key invalid within two seconds. Its running requests are finished."""
    now = await registry(state)
    await change(state, now, drop_key(_known(now, key)))
    return {"name": key, "removed": True}


@router.get("/prices")
async def show_prices(state: Admin) -> shapes.PriceTable:
    """Shows what models cost, in money of any kind."""
    return _prices(await registry(state))


@router.patch("/prices", openapi_extra=shapes.PriceChanges.openapi())
async def change_prices(request: Request, state: Admin) -> shapes.PriceTable:
    """Sets the prices of models. Null removes one; a model that isn't given keeps its price."""
    body, now = await read_short(request, shapes.PriceChanges), await registry(state)
    changes = [
        drop_price(model) if price is None else put_price(model, price.record()) for model, price in body.prices.items()
    ]
    return _prices(await change(state, now, changes))


@router.get("/audit", openapi_extra=AuditQuery.openapi())
async def show_audit(request: Request, state: Admin) -> shapes.AuditLog:
    """Shows who has changed what: entries after the one with the id `after`, the oldest first.

    `order=desc`: those before it.
    """
    query = parse(AuditQuery, orjson.dumps(dict(request.query_params)))
    command = audit.read_command(state.keys, query.after or "", query.limit + 1, newest_first=query.order == "desc")
    (replies,) = await state.wire.execute([command])
    return {"data": audit.shown(replies[: query.limit]), "has_more": len(replies) > query.limit}


def _known(now: Registry, name: str) -> ApiKey:
    """Raises: KeyNotFound."""
    if (key := now.keys.get(name)) is None:
        raise KeyNotFound(f"There is no API key of the name '{name[:100]}'.", param="key")
    return key


def _tenant(now: Registry, tenant: Tenant) -> dict[str, Any]:
    number = len(now.keys_of(tenant.name))
    return {"name": tenant.name, "created": tenant.created, "keys": number, **shown_tenant(tenant)}


def _key(key: ApiKey) -> dict[str, Any]:
    return {"name": key.name, "id": key.owner, "tenant": key.tenant, "created": key.created, **shown(key.limits)}


def _prices(now: Registry) -> shapes.PriceTable:
    return {"prices": {model: _price(price) for model, price in sorted(now.prices.items())}}


def _price(price: Price) -> shapes.PriceCard:
    return {"input": price.input, "cached_input": price.cached_input, "output": price.output, "image": price.image}
