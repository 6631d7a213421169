"""Models in Anthropic's shape."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from app.dispatch.models.models import Model


def anthropics_card(model: Model, created_at: int) -> dict[str, Any]:
    """`created_at`: seconds since the epoch."""
    return {
        "type": "model",
        "id": model.name,
        "display_name": model.name,
        "created_at": datetime.fromtimestamp(created_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": model.context_len,
        "max_tokens": model.context_len,
    }


def anthropics_list(models: Iterable[Model], created_at: int) -> dict[str, Any]:
    """All of them, on one page."""
    data = [anthropics_card(model, created_at) for model in models]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return {"data": data, "has_more": False} | ends
