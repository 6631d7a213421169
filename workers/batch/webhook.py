"""Tells a webhook that a batch has ended."""

from app import webhook
from app.batch.records import Batch


def tell(url: str, secret: str | None, batch: Batch) -> str:
    """Blocks. Returns the reason of a failure, or ''."""
    return webhook.tell(url, secret, f"batch.{batch.status}", batch.order.id)
