"""Prefixes that caches have before they are asked for, for operators. With `XYLEM_ADMIN_KEY`, or on loopback only."""

from functools import partial

from fastapi import APIRouter, Request

from app.api.intake.request_body import collect
from app.api.operations import prefix_changes as changes
from app.api.operations.admin import Admin
from app.api.operations.answer_types import PrefixCard, PrefixDropped, PrefixList
from app.api.operations.audited_route import AuditedRoute
from app.api.operations.prefix_standing import PrefixStanding, is_warm, standing
from app.dispatch.asking import Asking
from app.ids import PoolId, PrefixId
from app.messages.wanted import Prefix
from app.openai.prefix import NewPrefix, prefix_tokens
from app.schemas.validation import parse_off_loop

router = APIRouter(prefix="/admin/prefixes", tags=["prefixes"], route_class=AuditedRoute)


@router.get("")
async def list_prefixes(state: Admin) -> PrefixList:
    """All that are kept now, and how many caches have each."""
    pairs = [(prefix, await standing(state, prefix, pools)) for prefix, pools in await changes.pinned(state)]
    return {"data": [_card(*one) for one in pairs]}


@router.post("", openapi_extra=NewPrefix.openapi())
async def pin_prefix(request: Request, state: Admin) -> PrefixCard:
    """Answers when the caches that are to have it have it, or after `wait_s`: `warm` says which."""
    raw = await collect(request.scope, request.receive, state.settings.max_body)
    asking = Asking(state)
    body = await asking.served(await parse_off_loop(NewPrefix, raw, state.longest_context), None)
    tokens = await state.off_loop(raw, partial(prefix_tokens, asking, body), waits=body.chat_template is not None)
    return _card(*await changes.pin(state, body, tokens))


@router.delete("/{prefix}")
async def drop_prefix(state: Admin, prefix: str) -> PrefixDropped:
    """Drops a prefix: it is evicted as any other from now on, and removed from the pool's store."""
    await changes.drop(state, PrefixId(prefix))
    return {"id": prefix, "dropped": True}


def _card(prefix: Prefix, standings: dict[PoolId, PrefixStanding]) -> PrefixCard:
    return {
        "id": prefix.id,
        "model": prefix.model,
        "tokens": len(prefix.tokens),
        "until": None if prefix.once else prefix.until,
        "copies": prefix.copies,
        "warm": is_warm(standings),
        "pools": {
            pool: {"blocks": one.blocks, "places": one.places, "wanted": one.wanted} for pool, one in standings.items()
        },
    }
