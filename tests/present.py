"""Values that may be None in general, and are not where a test looks."""

from typing import TypeVar

_T = TypeVar("_T")


def present(value: _T | None) -> _T:
    """The value, which is there."""
    assert value is not None
    return value
