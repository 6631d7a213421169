"""Parts that the types of answers share.

An answer's type is a closed `TypedDict` beside its writer: mypy holds the writer to it, and `/openapi.json` comes from
it. It costs nothing at run time. `app/api/http/answered.py` and the routes' annotations put it into the document.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field


def absent_means(value: Any) -> Any:
    """The value that a `NotRequired` field has where it is left out, for the document."""
    return Field(json_schema_extra={"default": value})


def ends(objects: Sequence[Mapping[str, Any]]) -> tuple[str | None, str | None]:
    """The ids of the first and the last one, as lists show them."""
    return (objects[0]["id"], objects[-1]["id"]) if objects else (None, None)
