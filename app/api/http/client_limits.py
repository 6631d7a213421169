"""How much of what all share one client may ask for: what its API key says, or else the settings."""

from starlette.types import Scope

from app.api.state import ApiState
from app.errors import RequestError
from app.openai.schemas import ModelRequest


def file_quota(state: ApiState, scope: Scope) -> int:
    """Bytes that this client's files may have."""
    key = state.api_keys.key(scope)
    return state.settings.file_quota if key is None or key.file_quota is None else key.file_quota


def check_priority(state: ApiState, scope: Scope, asked: ModelRequest) -> None:
    """Raises: RequestError when it would go before more of the others than it may."""
    key = state.api_keys.key(scope)
    least = state.settings.min_priority if key is None or key.min_priority is None else key.min_priority
    if asked.priority is not None and asked.priority < least:
        raise RequestError(
            f"'priority': {asked.priority} is more urgent than this client may ask for, which is {least}.",
            param="priority",
        )
