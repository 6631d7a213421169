"""Connections to Redis of a test's own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from app.keys import Keys
from app.store import Wire, async_client
from tests.stack import Stack


@asynccontextmanager
async def connected(url: str, home: str = "", timeout_s: float = 2.0) -> AsyncIterator[tuple[Any, Wire]]:
    """A client and its wire, closed at the end."""
    client = async_client(url, home)
    wire = Wire(client, timeout_s)
    try:
        yield client, wire
    finally:
        wire.close()
        await client.aclose()


def as_worker(s: Stack, do: Callable[[Wire, Keys], Awaitable[Any]]) -> Any:
    """Calls `do` with a connection of its own, to write what a worker would write."""

    async def act() -> Any:
        async with connected(s.redis_url) as (_, wire):
            return await do(wire, Keys(s.deployment))

    return asyncio.run(act())
