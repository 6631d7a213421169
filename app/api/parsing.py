"""What a client sent, as one of the schemas; or what is wrong with it, by name."""

import json
from typing import Any, TypeVar

from pydantic import ValidationError

from app.api.neutral import NOT_SUPPORTED
from app.api.schemas import Body
from app.errors import RequestError

_MOST_ERRORS = 1000  # that are looked through for one to name
_SHOWN = 64  # characters of what was given

B = TypeVar("B", bound=Body)


def parse(schema: type[B], raw: bytes) -> B:
    """Raises: RequestError that names the field."""
    try:
        return schema.model_validate_json(raw)
    except ValidationError as exc:
        first = exc
    if first.error_count() > _MOST_ERRORS:
        raise RequestError(f"More than {_MOST_ERRORS} fields are wrong or not supported by this server.") from first
    # The slow way, taken on an error: what is null counts as not given, in unknown fields and in unsupported values.
    errors = first.errors()
    doc = None if errors[0]["type"] == "json_invalid" else json.loads(raw)
    if any(_may_be_null(e) for e in errors):
        doc = _without_nulls(doc)
        try:
            return schema.model_validate(doc)
        except ValidationError as exc:
            errors = exc.errors()
    raise _request_error(errors[0], doc) from first


def _may_be_null(err: Any) -> bool:
    """Whether nulls may be all that is wrong."""
    kind, given = err["type"], err["input"]
    return given is None if kind == "extra_forbidden" else kind == NOT_SUPPORTED and isinstance(given, dict)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    return [_without_nulls(v) for v in value] if isinstance(value, list) else value


def _request_error(err: Any, doc: Any) -> RequestError:
    if err["type"] == "json_invalid":
        return RequestError(f"The body is not valid JSON: {err['ctx']['error']}.")
    if not err["loc"]:
        return RequestError("The body has to be a JSON object.")
    path, kind, given = ".".join(_path(err, doc)), err["type"], err["input"]
    what = err["ctx"]["what"] if kind == NOT_SUPPORTED else ""
    if kind in ("union_tag_invalid", "union_tag_not_found"):  # only messages are told apart so
        path, what = f"{path}.role", "messages of role"
        kind, given = ("missing", None) if kind == "union_tag_not_found" else (NOT_SUPPORTED, given["role"])
    if what and isinstance(given, str):
        return RequestError(f"'{path}': {what} '{given[:_SHOWN]}' are not supported by this server.", param=path)
    if kind in ("extra_forbidden", NOT_SUPPORTED):
        return RequestError(f"'{path}' is not supported by this server.", param=path)
    if kind == "missing":
        return RequestError(f"'{path}' is missing.", param=path)
    return RequestError(f"'{path}': {err['msg']}.", param=path)


def _path(err: Any, doc: Any) -> list[str]:
    """Where in the body it is. pydantic's location also names the branches of unions, which the body doesn't have."""
    path, here = [], doc
    for part in err["loc"]:
        if (isinstance(here, dict) and part in here) or (isinstance(here, list) and isinstance(part, int)):
            here = here[part]
        elif not (err["type"] == "missing" and part == err["loc"][-1]):
            continue
        path.append(str(part))
    return path
