"""Clears caches, shows and changes limits, for operators. With `XYLEM_ADMIN_KEY`, or on loopback only."""

import asyncio
import secrets
from typing import Annotated, Any, cast

import msgspec
from fastapi import APIRouter, Depends, Request
from starlette.types import Scope

from app.api.intake.request_body import read_short
from app.api.operations.answer_types import OF_PREFILL, CachesCleared, PoolLimits
from app.api.operations.audited_route import AuditedRoute
from app.api.operations.pool_schemas import AliasChanges, AliasTable, LimitChanges
from app.api.state import ApiState, state_of
from app.errors import Forbidden, ModelNotFound, RequestError
from app.ids import PoolId
from app.intervals import COMMANDS_TTL_S
from app.messages.commands import ClearCache, Reply, decode_reply
from app.messages.wire import encode
from app.tenants.audit import WHO

_REPLY_S = 10
_BY_PROXIES = {"forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"}


async def authorised(request: Request) -> ApiState:
    """Notes in the scope who it is. Raises: Forbidden, Unauthorized, IssuerDown."""
    state = state_of(request)
    await authorise(state, request.scope)
    return state


async def authorise(state: ApiState, scope: Scope) -> None:
    """Notes in the scope who it is. Raises: Forbidden, Unauthorized, IssuerDown."""
    if (who := await state.api_keys.admin(scope)) is None:
        headers = {name.decode("latin-1") for name, _ in scope["headers"]}
        if state.settings.admin_key is not None or state.api_keys.issues_admins:
            raise Forbidden("Admin endpoints need 'Authorization: Bearer <XYLEM_ADMIN_KEY>', or it as 'x-api-key'.")
        with_link = ", or the link that `xylem up` prints" if state.settings.sign_in_key is not None else ""
        if not state.settings.on_loopback:
            raise Forbidden(
                "Admin endpoints are off: others than this machine may reach them (XYLEM_HOST, XYLEM_TRUSTED_PROXIES), "
                f"and XYLEM_ADMIN_KEY is not set. They need it{with_link}."
            )
        if not _BY_PROXIES.isdisjoint(headers):  # its client may be anywhere
            raise Forbidden(f"Requests through a proxy to admin endpoints need XYLEM_ADMIN_KEY to be set{with_link}.")
        if state.settings.require_keys and state.settings.sign_in_key is not None:  # clients of this machine have keys
            raise Forbidden("Admin endpoints need the key of `xylem up`'s link, as 'Authorization: Bearer'.")
        if "origin" in headers:  # any web page in a browser on this machine
            raise Forbidden(f"Requests of web pages to admin endpoints need XYLEM_ADMIN_KEY to be set{with_link}.")
        who = "loopback"
    scope[WHO] = who


Admin = Annotated[ApiState, Depends(authorised)]
router = APIRouter(prefix="/admin", tags=["pools"], route_class=AuditedRoute)


def known_pool(state: ApiState, pool: str) -> PoolId:
    if pool not in state.pools:
        raise ModelNotFound(f"There is no pool '{pool}'. There are: {', '.join(sorted(state.pools))}.", param="pool")
    return PoolId(pool)


@router.get("/pools/{pool}/limits")
async def show_pool_limits(state: Admin, pool: str) -> PoolLimits:
    """The limits above which the pool's workers get no more requests; null: none."""
    name = known_pool(state, pool)
    changes = await cast(Any, state.redis.hgetall(state.keys.limits(name)))
    limits = msgspec.structs.asdict(state.fleet.limits(name, [x for pair in changes.items() for x in pair]))
    prefills = state.pools[name].role == "prefill"
    return {field: value for field, value in limits.items() if prefills or field not in OF_PREFILL}


@router.patch("/pools/{pool}/limits", openapi_extra=LimitChanges.openapi())
async def change_pool_limits(request: Request, state: Admin, pool: str) -> PoolLimits:
    """Changes limits, for all API replicas from their next placement on."""
    name = known_pool(state, pool)
    changes = (await read_short(request, LimitChanges)).model_dump(exclude_unset=True)
    foreign = OF_PREFILL & changes.keys()
    if foreign and state.pools[name].role != "prefill":
        raise RequestError(f"{sorted(foreign)} are limits of pools of role prefill.", param=min(foreign))
    key = state.keys.limits(name)
    pipe = state.redis.pipeline(transaction=True)
    for field, value in changes.items():
        if value is None:
            pipe.hdel(key, field)
        else:
            pipe.hset(key, field, str(value))
    await pipe.execute()
    return await show_pool_limits(state, pool)


@router.get("/aliases")
async def show_aliases(state: Admin) -> AliasTable:
    """The aliases as they are now, those of the pools file and those made at run time."""
    await state.aliases.refresh(state.wire, state.keys)
    return AliasTable(aliases=dict(state.aliases.table))


@router.patch("/aliases", openapi_extra=AliasChanges.openapi())
async def change_aliases(request: Request, state: Admin) -> AliasTable:
    """Makes or replaces aliases, for all API replicas within a second or two. Null: as in the pools file again."""
    aliases = (await read_short(request, AliasChanges)).aliases
    await state.adapters.refresh()  # an alias may stand for one that another replica has just added
    for name, alias in aliases.items():
        if alias is not None and (problem := state.aliases.problem(name, alias)):
            raise RequestError(f"'aliases.{name}': {problem}.", param=f"aliases.{name}")
    pipe = state.redis.pipeline(transaction=True)
    for name, alias in aliases.items():
        if alias is None:
            pipe.hdel(state.keys.aliases(), name)
        else:
            pipe.hset(state.keys.aliases(), name, alias.model_dump_json())
    await pipe.execute()
    return await show_aliases(state)


@router.post("/clear_kv_blocks")
async def clear_all_caches(state: Admin) -> CachesCleared:
    """Every worker forgets its cached prefixes. One with requests running refuses."""
    return await clear_caches(state, list(state.pools))


@router.post("/pools/{pool}/clear_kv_blocks")
async def clear_pool_cache(state: Admin, pool: str) -> CachesCleared:
    """The workers of one pool forget their cached prefixes. One with requests running refuses."""
    return await clear_caches(state, [known_pool(state, pool)])


async def clear_caches(state: ApiState, pools: list[PoolId]) -> CachesCleared:
    """The workers of these pools forget what they have cached: those that have, and those that refuse, and why."""
    leases = await state.fleet.live(pools)
    id_ = secrets.token_hex(8)
    pipe = state.redis.pipeline(transaction=False)
    for lease in leases:
        key = state.keys.commands(lease.worker.id)
        pipe.rpush(key, encode(ClearCache(id_)))
        pipe.expire(key, COMMANDS_TTL_S)
    await pipe.execute()
    replies: list[Reply] = []
    deadline = asyncio.get_running_loop().time() + _REPLY_S
    while len(replies) < len(leases) and (remaining_s := deadline - asyncio.get_running_loop().time()) > 0:
        # Short: the Redis client gives up on replies that take longer than its own time-out.
        entry = await cast(Any, state.redis.blpop([state.keys.reply(id_)], timeout=min(1.0, remaining_s)))
        if entry is not None:
            replies.append(decode_reply(entry[1]))
    silent = {lease.worker.id for lease in leases} - {reply.worker for reply in replies}
    return {
        "cleared": [r.worker for r in replies if r.done],
        "refused": {r.worker: r.reason for r in replies if not r.done} | dict.fromkeys(silent, "no answer"),
    }
