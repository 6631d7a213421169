"""The fleet as the console and `xylem top` show it to operators."""

from functools import partial

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.console.answer_types import Fleet, SharedPrefixes
from app.api.console.fleet_feed import FleetFeed
from app.api.console.prefix_view import prefixes_now
from app.api.http.headers import events_wanted
from app.api.http.live_stream import AS_EVENTS, LiveStream
from app.api.operations.admin import Admin
from app.tenants.audit import WHO

router = APIRouter(prefix="/admin/fleet", tags=["fleet"])
_FEED = FleetFeed()


@router.get("", responses={200: {"model": Fleet, **AS_EVENTS[200]}})
async def show_fleet(request: Request, state: Admin) -> Response:
    """Pools and workers now: seats, KV blocks, what is queued, speeds; and this replica's latest requests.

    With `Accept: text/event-stream` it comes again about once a second; of hundreds of workers less often.
    """
    if events_wanted(request.scope):
        return LiveStream(state.live, request.scope[WHO], "fleet", partial(_FEED.now, state))
    return Response(orjson.dumps(await _FEED.now(state)), media_type="application/json")


@router.get("/prefixes")
async def show_fleet_prefixes(state: Admin) -> SharedPrefixes:
    """Prefixes that this replica's latest prompts share, as digests and counts, and the caches that have them."""
    return {"pools": await prefixes_now(state)}
