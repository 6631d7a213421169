"""Headers of our own."""

from starlette.types import Scope


def explain_wanted(scope: Scope) -> bool:
    """Whether the answer has to explain its placement."""
    return dict(scope["headers"]).get(b"x-xylem-explain", b"") not in (b"", b"0")


def events_wanted(scope: Scope) -> bool:
    """Whether the client asks for server-sent events, as a browser's EventSource does."""
    accept: bytes = dict(scope["headers"]).get(b"accept", b"")
    return accept.startswith(b"text/event-stream")
