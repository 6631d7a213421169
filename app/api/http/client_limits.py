"""One client's share of what all clients share: from its API key, or else from the settings."""

from starlette.types import Scope

from app.api.state import ApiState
from app.errors import RequestError
from app.openai.schemas import ModelRequest


def file_quota(state: ApiState, scope: Scope) -> int:
    """The bytes that all files of this client may have together."""
    key = state.api_keys.key(scope)
    return state.settings.file_quota if key is None or key.file_quota is None else key.file_quota


def check_priority(state: ApiState, scope: Scope, asked: ModelRequest) -> None:
    """Raises: RequestError when the priority is more urgent than this client's may be."""
    key = state.api_keys.key(scope)
    least = state.settings.min_priority if key is None or key.min_priority is None else key.min_priority
    if asked.priority is not None and asked.priority < least:
        raise RequestError(
            f"'priority': {asked.priority} is more urgent than {least}, the most urgent for this client.",
            param="priority",
        )
