"""Reading a request's body, bounded."""

import asyncio

from fastapi import Request
from starlette.types import Receive, Scope

from app.api.http.incoming import share_of
from app.api.state import state_of
from app.endpoints import LARGE
from app.errors import BodyTooLarge, Cancelled
from app.schemas.validation import B, parse_off_loop
from app.tenants.admission import admitted

_SHORT = 64 * 2**10  # bytes of a body without prompts
_PIECE = 2**20  # bytes
SHORT_BODY = "xylem.short_body"  # in the scope: what `read_short` has read


async def read_short(request: Request, schema: type[B]) -> B:
    """The body of an endpoint that takes no prompt. Raises: RequestError, BodyTooLarge, Cancelled."""
    limit = min(_SHORT, state_of(request).settings.max_body)
    raw = request.scope[SHORT_BODY] = await collect(request.scope, request.receive, limit)
    return await parse_off_loop(schema, raw)


async def collect(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body; from then on it has no share of those that come in.

    Raises: BodyTooLarge, before a byte is read when its length is given; Cancelled; RateLimited, BudgetUsed, StoreDown
    and Saturated for a large one.
    """
    if (length := given_length(scope)) is not None and length > limit:
        raise _too_large(limit)
    share = share_of(scope)
    pieces: list[bytes] = []  # of a long one: no step copies all of it
    body, size = bytearray(), 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Cancelled
        came = message.get("body", b"")
        body += came
        size += len(came)
        if size > limit:
            raise _too_large(limit)
        if size > LARGE:
            await admitted()
            if share is not None:
                share.grow(size)
        if not message.get("more_body", False):
            break
        if len(body) >= _PIECE:
            pieces.append(bytes(body))
            body.clear()
    if share is not None:
        share.close()
    if not pieces:
        return bytes(body)
    return await asyncio.to_thread(b"".join, [*pieces, bytes(body)])  # which releases Python's lock


def given_length(scope: Scope) -> int | None:
    """Bytes of the body, as its head says; None: it doesn't."""
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else None
    return None


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The request's body is over the limit of {limit} bytes.")
