"""Refusals that name the client's own parameter."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from app.errors import RequestError


@contextmanager
def refused(param: str, match: str | None = None, kind: type[RequestError] = RequestError) -> Iterator[None]:
    """Expects an error of this kind, whose message matches, and which names the parameter."""
    with pytest.raises(kind, match=match) as error:
        yield
    assert error.value.param == param
