"""One client's share of what all clients share: from its API key and its tenant, or else from the settings."""

from starlette.types import Scope

from app.api.state import ApiState
from app.errors import RequestError
from app.openai.schemas import ModelRequest


def file_quota(state: ApiState, scope: Scope) -> int:
    """The bytes that all files of this client may have together."""
    given = state.api_keys.client(scope).within.file_quota
    return state.settings.file_quota if given is None else given


def check_priority(state: ApiState, scope: Scope, asked: ModelRequest) -> None:
    """Raises: RequestError when the priority is more urgent than this client's may be."""
    given = state.api_keys.client(scope).within.min_priority
    least = state.settings.min_priority if given is None else given
    if asked.priority is not None and asked.priority < least:
        raise RequestError(
            f"'priority': {asked.priority} is more urgent than {least}, the most urgent for this client.",
            param="priority",
        )
