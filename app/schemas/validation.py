"""Parsing a request's body by its schema; errors name the field."""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from app.errors import BodyTooLarge, RequestError
from app.schemas.body import Body
from app.schemas.neutral import NOT_SUPPORTED

_MOST_ERRORS = 1000  # among which one is chosen to be named
_WANTED = "Input should be "
_SHOWN = 64  # characters of a wrong value
_LONGEST_NAME = 200  # characters of a field's path, which the client chooses
# What is parsed at once, since a thread would take longer: so many bytes, or more of them in few values.
_SMALL, _SMALL_TEXT, _FEW = 16 * 2**10, 2**17, 2**11
# Values of a large body: the parser builds all of them before the schema checks one, and holds up all other threads.
_VALUES, _CONTAINERS = 2**18, 2**15
_FIELDS = 3 * _CONTAINERS  # of all objects: one with its name takes four times as long as a number
_PIECE = 2**16  # bytes of a body that native code looks at in one go, and holds up all other threads
_QUICK = 2**19  # bytes that take a millisecond at most to be counted in one go

# Fields whose content is the client's own: null in them is a value. `input` is one if it is an object, not a prompt.
_AS_SENT = {
    "chat_template_kwargs",
    "guided_json",
    "input_schema",
    "json",
    "parameters",
    "schema",
    "structural_tag",
    "structures",
}

# One thread: a second one would compete with it for the interpreter, and the event loop would wait for both.
_large = ThreadPoolExecutor(1, thread_name_prefix="parsing")

B = TypeVar("B", bound=Body)


async def parse_off_loop(schema: type[B], raw: bytes, token_ids: int = 0, *, what: str = "The body") -> B:
    """`parse`, in a thread if the body is large and more than one long text.

    `token_ids`: how many of them it may have; `what`: what it is.

    Raises: RequestError that names the field; BodyTooLarge for too many values, however short.
    """
    if len(raw) <= _SMALL or (len(raw) <= _SMALL_TEXT and sum(map(raw.count, (b",", b"[", b"{"))) <= _FEW):
        return parse(schema, raw)
    return await asyncio.get_running_loop().run_in_executor(_large, _parse_large, schema, raw, token_ids, what)


def _parse_large(schema: type[B], raw: bytes, token_ids: int, what: str) -> B:
    check_values(raw, max(_VALUES, token_ids) + _CONTAINERS, what)
    return parse(schema, raw)


def check_values(raw: bytes, most: int, what: str = "The body") -> None:
    """Raises: BodyTooLarge for more than `most` values, too many lists and objects, or too many fields."""
    if len(raw) <= _QUICK and _are_few(raw, most):  # counting also what is within texts: in a fifth of the time
        return
    values = containers = fields = 0
    for piece in _outside_texts(raw):
        values += piece.count(b",")
        containers += piece.count(b"[") + piece.count(b"{")
        fields += piece.count(b":")
        if values >= most or containers > _CONTAINERS or fields > _FIELDS:
            raise BodyTooLarge(
                f"{what} has more than {most} values, {_CONTAINERS} lists and objects, or {_FIELDS} fields."
            )


def _are_few(raw: bytes, most: int) -> bool:
    containers = raw.count(b"[") + raw.count(b"{")
    return raw.count(b",") < most and containers <= _CONTAINERS and raw.count(b":") <= _FIELDS


def _outside_texts(raw: bytes) -> Iterator[bytes]:
    """Bytes that are in no text of a JSON document, in pieces. Of what is no JSON: any bytes."""
    start, within = 0, False
    while start < len(raw):
        piece = raw[start : start + _PIECE]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2 and len(piece) > 1:
            piece = piece[:-1]  # which begins an escape, and the next piece
        start += len(piece)
        if b'"' not in piece:
            yield b"" if within else piece
            continue
        # Without escapes, each quote begins or ends a text.
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield b"".join(parts[within::2])
        within ^= len(parts) % 2 == 0


def parse(schema: type[B], raw: bytes) -> B:
    """Raises: RequestError that names the field."""
    try:
        return schema.model_validate_json(raw)
    except ValidationError as exc:
        first = exc.with_traceback(None)  # the traceback would refer to this frame, and keep the body in memory
    _check_number(first)
    # The slow way, only on an error: nulls count as not given, in unknown fields and in unsupported values.
    errors = _errors(first)
    if errors[0]["type"] == "json_invalid":
        raise RequestError(f"The body is not valid JSON: {errors[0]['ctx']['error']}.") from first
    doc = from_json(raw)  # in a fifth of the time of `json`, and nobody else runs meanwhile
    if any(_may_be_null(e, doc) for e in errors):
        doc = _without_nulls(doc)
        try:
            return schema.model_validate(doc)
        except ValidationError as exc:
            errors = _errors(exc)
    raise _request_error(errors, doc) from first


def validated(schema: type[B], doc: dict[str, Any]) -> B:
    """`parse` for a document that has been decoded. Raises: RequestError that names the field."""
    try:
        return schema.model_validate(doc)
    except ValidationError as exc:
        _check_number(exc)
        raise _request_error(_errors(exc), doc) from exc


def _check_number(errors: ValidationError) -> None:
    """Raises: RequestError for more errors than are looked at."""
    if errors.error_count() > _MOST_ERRORS:
        raise RequestError(f"More than {_MOST_ERRORS} fields are wrong or not supported by this server.") from errors


def _may_be_null(err: Any, doc: Any) -> bool:
    """Whether nulls may be the only error."""
    value = _find(err, doc)[1]
    return value is None or (err["type"] == NOT_SUPPORTED and isinstance(value, dict))


def _errors(exc: ValidationError) -> list[Any]:
    """The errors without the wrong values, which may be long, and which each error has."""
    return exc.errors(include_url=False, include_input=False)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: v if _is_own(k, v) else _without_nulls(v) for k, v in value.items() if v is not None}
    return [_without_nulls(v) for v in value] if isinstance(value, list) else value


def _is_own(key: str, value: Any) -> bool:
    return key in _AS_SENT or (key == "input" and isinstance(value, dict))


def _request_error(errors: Sequence[Any], doc: Any) -> RequestError:
    if not errors[0]["loc"]:
        ours = errors[0].get("ctx", {}).get("error")  # of fields that don't fit together
        return RequestError("The body has to be a JSON object." if ours is None else f"{ours}.")
    err, message = _chosen(errors, doc)
    parts, value = _find(err, doc)
    path, kind = ".".join(parts)[:_LONGEST_NAME], err["type"]
    what = err.get("ctx", {}).get("what", "") if kind == NOT_SUPPORTED else ""
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        tag = err["ctx"]["discriminator"].strip("'")
        within = parts[-2] if len(parts) > 1 else ""
        what = "content parts of type" if within in ("content", "output") else f"objects of {tag}"
        what = "messages of role" if tag == "role" else what
        path = f"{path}.{tag}"
        kind, value = ("missing", None) if kind == "union_tag_not_found" else (NOT_SUPPORTED, value[tag])
    elif kind == NOT_SUPPORTED and parts[-1].isdecimal() and not isinstance(value, str | dict):
        return RequestError(f"'{path}': {_WANTED}an object.", param=path)
    elif kind == NOT_SUPPORTED and isinstance(value, dict) and (what or parts[-1].isdecimal()):
        # A union, whose member its type decides.
        path, value = f"{path}.type", value.get("type")
        what = what or ("tools of type" if parts[-2] == "tools" else "items of type")
        kind = "missing" if value is None else kind
    if what and isinstance(value, str):
        return RequestError(f"'{path}': {what} '{value[:_SHOWN]}' are not supported by this server.", param=path)
    if kind in ("extra_forbidden", NOT_SUPPORTED):
        return RequestError(f"'{path}' is not supported by this server.", param=path)
    if kind == "missing":
        return RequestError(f"'{path}' is missing.", param=path)
    return RequestError(f"'{path}': {message}.", param=path)


def _chosen(errors: Sequence[Any], doc: Any) -> tuple[Any, str]:
    """The error that is named, and its message.

    A value that may be of several types has an error of each: the one that says most is of the type that it almost is.
    """
    first, _ = _find(errors[0], doc)
    of_first = [(err, place) for err in errors if (place := _find(err, doc)[0])[: len(first)] == first]
    best, where = max(of_first, key=lambda pair: _fit(*pair))
    same = [err["msg"] for err, place in of_first if place == where and _fit(err, place) == _fit(best, where)]
    types = dict.fromkeys(msg.removeprefix(_WANTED) for msg in same if msg.startswith(_WANTED))
    return best, _WANTED + " or ".join(types) if types else best["msg"]


def _fit(err: Any, fits: list[str]) -> tuple[bool, int, int]:
    """A measure of how far the value fits an error's type: by its own type, and in lists by its first elements."""
    return not err["type"].endswith("_type"), len(fits), int(fits[-1]) if fits[-1].isdecimal() else -1


def _find(err: Any, doc: Any) -> tuple[list[str], Any]:
    """The path of an error in the body, and the value there, or the last value on the way to it.

    pydantic's location also names the branches of unions, which the body doesn't have.
    """
    path, here, loc, was_tag = [], doc, err["loc"], False
    for place, part in enumerate(loc, 1):
        was_tag = not was_tag and _is_tag(here, part, loc[place:])
        if was_tag:
            continue
        if (isinstance(here, dict) and part in here) or (isinstance(here, list) and isinstance(part, int)):
            here = here[part]
        elif not (err["type"] == "missing" and place == len(loc)):
            continue
        path.append(str(part))
    return path, here


def _is_tag(here: Any, part: Any, behind: Sequence[Any]) -> bool:
    """Whether a part of a location is the type by which a union was decided, and not the field of that name.

    Then what is behind it is a field beside it.
    """
    return isinstance(here, dict) and part in here and part == here.get("type") and any(p in here for p in behind[:1])
