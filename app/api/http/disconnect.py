"""Noticing that a client has left before its answer is complete, or that the server can't wait for that."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from app.api.http.uvicorn_protocol import DirectProtocol
from app.errors import Cancelled, ServerStops

T = TypeVar("T")


async def until_client_left(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """The result of `work`, which is cancelled when the client leaves. Raises: Cancelled when it has, ServerStops."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(client_left(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        leaving.result()
        raise Cancelled
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
        del working, leaving  # an error refers to this frame, and its task to the error


async def client_left(receive: Receive) -> None:
    """Returns when the client has left. Raises: ServerStops."""
    while (await receive())["type"] != "http.disconnect":
        if DirectProtocol.cuts:
            raise ServerStops
