"""Tells a webhook that a batch has ended, signed if there is a secret."""

import time

import httpx
import orjson

from app.batch.records import Batch
from app.signature import signed

_TIMEOUT_S = 10.0


def event(batch: Batch, now: float) -> bytes:
    id_ = batch.order.id
    return orjson.dumps(
        {
            "id": f"evt_{id_.removeprefix('batch_')}",
            "object": "event",
            "created_at": int(now),
            "type": f"batch.{batch.status}",
            "data": {"id": id_},
        }
    )


def tell(url: str, secret: str | None, batch: Batch) -> str:
    """Blocks. Returns the reason of a failure, or ''."""
    now = time.time()
    body, id_ = event(batch, now), f"wh_{batch.order.id.removeprefix('batch_')}"
    headers = signed(secret, id_, int(now), body)
    try:
        with httpx.stream("POST", url, content=body, headers=headers, timeout=_TIMEOUT_S, trust_env=False) as answer:
            return "" if answer.is_success else f"status {answer.status_code}"  # the body is not read
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        return type(exc).__name__
