"""Headers of our own."""

from starlette.types import Scope

EXPLAIN = b"x-xylem-explain"
# Of requests whose answers can be resumed, or joined when the request is repeated.
KEEPING = {b"idempotency-key", b"last-event-id", b"x-xylem-resumable"}


def events_wanted(scope: Scope) -> bool:
    """Whether the client asks for server-sent events, as a browser's EventSource does."""
    accept: bytes = dict(scope["headers"]).get(b"accept", b"")
    return accept.startswith(b"text/event-stream")
