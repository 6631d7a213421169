"""Models in Anthropic's shape."""

from collections.abc import Iterable
from datetime import UTC, datetime

from app.anthropic.answer_types import AnthropicModel, AnthropicModels
from app.dispatch.models.models import Model
from app.schemas.answers import ends


def anthropics_card(model: Model, created_at: int) -> AnthropicModel:
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


def anthropics_list(models: Iterable[Model], created_at: int) -> AnthropicModels:
    """All of them, on one page."""
    data = [anthropics_card(model, created_at) for model in models]
    first, last = ends(data)
    return {"data": data, "has_more": False, "first_id": first, "last_id": last}
