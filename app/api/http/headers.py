"""Headers of our own."""

from starlette.types import Scope


def explain_wanted(scope: Scope) -> bool:
    """Whether the answer has to explain its placement."""
    return dict(scope["headers"]).get(b"x-xylem-explain", b"") not in (b"", b"0")
