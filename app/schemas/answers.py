"""Parts that the types of answers share.

An answer's type is a closed `TypedDict` beside its writer: mypy holds the writer to it, and `/openapi.json` comes from
it. It costs nothing at run time. `app/api/http/answered.py` and the routes' annotations put it into the document.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, get_type_hints

import msgspec
from pydantic import Field, WithJsonSchema

from app.schemas.body import inlined


def absent_means(value: Any) -> Any:
    """The value that a `NotRequired` field has where it is left out, for the document."""
    return Field(json_schema_extra={"default": value})


def ends(objects: Sequence[Mapping[str, Any]]) -> tuple[str | None, str | None]:
    """The ids of the first and the last one, as lists show them."""
    return (objects[0]["id"], objects[-1]["id"]) if objects else (None, None)


def as_struct(struct: type[msgspec.Struct], *, optional: Collection[str] = (), **more: Any) -> WithJsonSchema:
    """The shape of a struct as a dict, with `more` fields: `Annotated[dict[str, Any], as_struct(PlaceLimits)]`."""
    fields = {name: inlined(msgspec.json.schema(kind)) for name, kind in (get_type_hints(struct) | more).items()}
    present = [name for name in fields if name not in optional]
    return WithJsonSchema({"type": "object", "properties": fields, "required": present, "additionalProperties": False})
