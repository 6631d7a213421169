"""Whether a value is a JSON schema, as far as its shape tells: no pattern is compiled.

It may be written into a prompt, so its size and depth have bounds.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from app.dialects.references import looked_up

_DEEPEST = 32  # nested lists and objects
_LONGEST = 2**16  # bytes, written as JSON
_TYPES = {"array", "boolean", "integer", "null", "number", "object", "string"}


def check_parameters(schema: dict[str, Any]) -> None:
    """Checks the schema of a function's arguments, which are an object; keywords that are null are removed from it.

    Raises: ValueError that says what is wrong.
    """
    check_bounds(schema)
    if schema.get("type") not in (None, "object"):
        raise ValueError("the type of parameters has to be 'object'")
    _check_all(schema)


def check_schema(schema: Any) -> None:
    """Checks an answer's schema, as `check_parameters`. Raises: ValueError, also for what can't be enforced."""
    check_bounds(schema)
    _check_all(schema, enforced=True)


def check_bounds(value: Any) -> None:
    """Raises: ValueError when it is too deep, too long, or has numbers or characters that JSON doesn't have."""
    if _deeper(value, _DEEPEST):
        raise ValueError(f"at most {_DEEPEST} levels")
    if len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode()) > _LONGEST:
        raise ValueError(f"at most {_LONGEST} bytes of JSON")


def _deeper(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return inner is not None and (levels == 0 or any(_deeper(part, levels - 1) for part in inner))


def _check_all(root: Any, *, enforced: bool = False) -> None:
    """Checks a schema and what it refers to, wherever that stands: under any keyword. Raises: ValueError."""
    ids: set[int] = set()
    references: list[str] = []
    _check(root, "", ids, references, enforced=enforced)
    for reference in references:  # which become more
        if reference.startswith("#") and (part := looked_up(reference, root)) is not None:
            _check(part, reference, ids, references, enforced=enforced)


def _check(schema: Any, path: str, visits: set[int], references: list[str], *, enforced: bool) -> None:
    """`visits`: the identities of those that were checked. `references`: all that were found."""
    if isinstance(schema, bool) or id(schema) in visits:
        return
    visits.add(id(schema))
    if not isinstance(schema, dict):
        raise _wrong(path, "a schema")
    for key in [key for key, value in schema.items() if value is None and key in _KEYWORDS]:
        del schema[key]  # in Anthropic's and others' types they may be null
    for key, value in schema.items():
        here = f"{path}.{key}" if path else key
        for where, inner in _within(key, value, here):
            _check(inner, where, visits, references, enforced=enforced)
        if key in _PLAIN and not _PLAIN[key][0](value):
            raise _wrong(here, _PLAIN[key][1])
        if key == "$ref":
            references.append(value)
    if enforced and (key := _unenforceable(schema)):
        raise ValueError(f"{path}.{key}".lstrip(".") + " can't be enforced" + _BESIDE.get(key, ""))


def _within(key: str, value: Any, path: str) -> Iterable[tuple[str, Any]]:
    """The schemas within a keyword's value, each with its path."""
    if key in _SCHEMAS and not (key == "items" and isinstance(value, list)):  # older drafts have lists there
        return [(path, value)]
    if key in _LISTS or key == "items":
        if not isinstance(value, list):
            raise _wrong(path, "a list of schemas")
        return [(f"{path}.{i}", inner) for i, inner in enumerate(value)]
    if key in _OBJECTS:
        if not isinstance(value, dict):
            raise _wrong(path, "an object of schemas")
        return [(f"{path}.{name}", inner) for name, inner in value.items()]
    return ()


def _unenforceable(schema: dict[str, Any]) -> str | None:
    """The keyword that xgrammar would ignore, by itself or beside others."""
    if keywords := _NEVER & schema.keys():
        return min(keywords)
    if len(schema.get("allOf") or ()) > 1:
        return "allOf"
    patterns = schema.get("patternProperties")
    if patterns and (len(patterns) > 1 or "properties" in schema):
        return "patternProperties"
    exact = "pattern" if "pattern" in schema else "format" if "format" in schema else None
    return exact if exact and schema.keys() & {"minLength", "maxLength"} else None


def _wrong(path: str, name: str) -> ValueError:
    return ValueError(f"{path} is not {name}")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, str) for part in value)


def _is_type(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in _TYPES for name in names)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


_SCHEMAS = frozenset(
    """
    additionalItems additionalProperties contains else if items not propertyNames then unevaluatedItems
    unevaluatedProperties
    """.split()
)
# What xgrammar or llguidance has no grammar for.
_NEVER = frozenset(
    """
    contains dependentRequired dependentSchemas else if maxContains minContains multipleOf not propertyNames
    then unevaluatedItems uniqueItems
    """.split()
)
_BESIDE = {
    "allOf": " with several schemas",
    "format": " beside a length",
    "pattern": " beside a length",
    "patternProperties": " beside others",
}
_LISTS = {"allOf", "anyOf", "oneOf", "prefixItems"}
_OBJECTS = {"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"}
# Older drafts have booleans in exclusiveMinimum and exclusiveMaximum.
_PLAIN: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "type": (_is_type, "a type of JSON, or a list of them"),
    "enum": (lambda value: isinstance(value, list), "a list"),
    "required": (_is_texts, "a list of names"),
    **dict.fromkeys(("$ref", "$id", "$schema", "title", "description", "format", "pattern"), (_is_text, "a text")),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), (_is_count, "a count")),
    **dict.fromkeys(("minProperties", "maxProperties"), (_is_count, "a count")),
    **{
        name: (lambda value: isinstance(value, int | float), "a number")
        for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
    },
}
_KEYWORDS = _SCHEMAS | _LISTS | _OBJECTS | _PLAIN.keys()
