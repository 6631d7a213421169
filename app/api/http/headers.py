"""Headers of our own."""

from starlette.types import Scope


def explain_wanted(scope: Scope) -> bool:
    """Whether the answer has to explain its placement."""
    return any(name == b"x-xylem-explain" and value not in (b"", b"0") for name, value in scope["headers"])
