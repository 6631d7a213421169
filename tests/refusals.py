"""Refusals that name the client's own parameter."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from app.errors import RequestError, SettingsError
from app.settings import load_settings


@contextmanager
def refused(param: str, match: str | None = None, kind: type[RequestError] = RequestError) -> Iterator[None]:
    """Expects an error of this kind, whose message matches, and which names the parameter."""
    with pytest.raises(kind, match=match) as error:
        yield
    assert error.value.param == param


def settings_error(**fields: Any) -> str:
    """The message that refuses these settings."""
    with pytest.raises(SettingsError) as error:
        load_settings(**fields)
    return error.value.message
