"""Limits how urgent a client's requests may be: by its API key and its tenant, or else by the settings."""

from starlette.types import Scope

from app.api.state import ApiState
from app.errors import RequestError
from app.openai.schemas import ModelRequest


def check_priority(state: ApiState, scope: Scope, request: ModelRequest) -> None:
    """Raises: RequestError when the priority is more urgent than this client's may be."""
    client_least = state.api_keys.client(scope).within.min_priority
    least = state.settings.min_priority if client_least is None else client_least
    if request.priority is not None and request.priority < least:
        raise RequestError(
            f"'priority': {request.priority} is more urgent than {least}, the most urgent for this client.",
            param="priority",
        )
