"""Calls of XYLEM_WEBHOOK_URL: OpenAI's events about what has ended, and ours about budgets; signed by a secret."""

import asyncio
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import httpx
import orjson

from app.webhooks.signature import signed
from app.webhooks.tls import tls

# Seconds from one try to tell the webhook to the next one.
TRIES_AFTER_S = (5, 30, 120, 600, 3600, 10_800, 36_000)
_TIMEOUT_S = 10.0  # for all of a call, however slowly the answer comes


def event(kind: str, about: str, now: int, more: Mapping[str, Any] = MappingProxyType({})) -> bytes:
    """`about`: what has ended as `kind` says, such as `batch_1`; `more`: its facts. `now`: seconds since the epoch."""
    id_ = f"evt_{about.partition('_')[2]}"
    data = {"id": about, **more}
    return orjson.dumps({"id": id_, "object": "event", "created_at": now, "type": kind, "data": data})


async def tell(
    url: str, secret: str | None, kind: str, about: str, more: Mapping[str, Any] = MappingProxyType({})
) -> str:
    """Returns a failure's reason, or ''."""
    now = int(time.time())
    body = event(kind, about, now, more)
    headers = signed(secret, f"wh_{about.partition('_')[2]}", now, body)
    client = httpx.AsyncClient(verify=tls(), timeout=None, trust_env=False)  # noqa: S113 (it has one for all of it)
    try:
        async with (
            asyncio.timeout(_TIMEOUT_S),
            client,
            client.stream("POST", url, content=body, headers=headers) as answer,
        ):
            return "" if answer.is_success else f"status {answer.status_code}"  # the body is not read
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as exc:
        return type(exc).__name__
