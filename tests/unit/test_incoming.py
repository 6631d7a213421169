"""Bytes of large bodies that come in at once are bounded, and counted only while they come."""

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope

from app.api.http.incoming import Incoming, Share
from app.api.http.origin import Allowed
from app.api.intake.fast_path import FastPath
from app.api.state import ApiState
from app.errors import BodyTooLarge, Saturated
from app.ids import KeyId, TenantId
from app.tenants.records import NOBODY, Client, Tenant
from tests.plain_connection import PlainConnection


def test_bytes_on_their_way_are_bounded_for_a_key_a_tenant_and_all() -> None:
    """The bytes are free again when they have come."""
    incoming = Incoming(800)

    def of(key: str, tenant: str) -> Share:
        return Share(incoming, Client(Tenant(TenantId(tenant)), KeyId(key)))

    one, same, colleague, third = of("a", "red"), of("a", "red"), of("b", "red"), of("c", "red")
    one.grow(150)
    one.grow(100)  # it has them
    with pytest.raises(Saturated, match="of one API key"):
        same.grow(51)
    colleague.grow(200)
    with pytest.raises(Saturated, match="of one tenant"):
        third.grow(51)
    nobody = Share(incoming, NOBODY)  # where no keys are required
    nobody.grow(450)
    with pytest.raises(Saturated, match="requests here"):
        Share(incoming, NOBODY).grow(1)
    for share in (one, one, colleague, nobody):
        share.close()
    third.grow(200)
    third.close()
    assert not incoming._sizes


@pytest.mark.parametrize("tenants", [["default"], ["red", "blue"], ["red", "blue", "default"]])
def test_a_few_who_hold_all_that_they_may_leave_room_for_others(tenants: list[str]) -> None:
    """The few keep it as long as they like, at a kilobyte a second. Keys without a tenant share none."""
    incoming = Incoming(2**20)
    for number, tenant in enumerate(tenants * 2):
        for size in (2**i for i in range(19, -1, -1)):
            with suppress(Saturated, BodyTooLarge):
                Share(incoming, Client(Tenant(TenantId(tenant)), KeyId(f"greedy{number}"))).grow(size)
    Share(incoming, Client(Tenant(TenantId("default")), KeyId("a"))).grow(2**14)
    Share(incoming, Client(Tenant(TenantId("green")), KeyId("b"))).grow(2**14)


def test_a_body_that_never_fits_is_too_large_also_when_nothing_else_comes() -> None:
    """Its client would try again for nothing."""
    share = Share(Incoming(800), Client(Tenant(TenantId("red")), KeyId("a")))
    with pytest.raises(BodyTooLarge, match="of one API key come in at once"):
        share.grow(201)
    share.grow(150)
    with pytest.raises(BodyTooLarge):
        share.grow(201)


@pytest.mark.parametrize("pieces", [1, 3])
async def test_a_body_that_has_come_is_not_counted_while_its_request_is_answered(pieces: int) -> None:
    """Whether it came at once or not: an answer may take minutes."""
    incoming, answering, go_on = Incoming(10**6), asyncio.Event(), asyncio.Event()

    async def handle(_state: ApiState, raw: bytes, _scope: Scope, _receive: Receive) -> Response:
        assert len(raw) == 150_000
        answering.set()
        await go_on.wait()
        return Response(b"done")

    state = SimpleNamespace(
        settings=SimpleNamespace(require_keys=False, max_body=10**6),
        api_keys=SimpleNamespace(client=lambda _scope: NOBODY),
        within=NOBODY.within,
        incoming=incoming,
        tracer=None,
    )
    app = cast(Any, SimpleNamespace(state=SimpleNamespace(xylem=state)))
    connection = PlainConnection(FastPath(app, {"/x": handle}, Allowed(frozenset(), None)))
    size = 150_000 // pieces
    head = b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 150000\r\n\r\n"
    first, *rest = [b"x" * size] * pieces
    await connection.feed(head + first)
    assert bool(incoming._sizes) == bool(rest)
    await connection.feed(*rest)
    assert answering.is_set()
    assert not incoming._sizes
    go_on.set()
    assert b"200 OK" in await connection.feed(b"")
