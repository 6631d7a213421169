"""A parameter's text as JSON, of the type that the tool's schema names."""

import ast
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from json.encoder import encode_basestring as quote

from app.dialects.parts import Call
from app.dialects.references import looked_up

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?").fullmatch
_LITERALS = {"true": "true", "True": "true", "false": "false", "False": "false"}
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
_CONTAINERS = {"object": dict, "array": list}
Types = frozenset[str]
_LONGEST_LITERAL = 2**16  # characters
_MOST = 64  # schemas that are searched for a parameter's type
ANY: Types = frozenset()  # no type is named
_NULLABLE = frozenset({"string", "null"})
_TEXT = frozenset({"string"})


def types_of(schema: object, key: str, schema_type: str | None, default: Types = ANY) -> Types:
    """The types of a tool's parameter; `default`: of one that the schema doesn't name.

    `schema_type`: the type that the model wrote, one of several that a value may have; `true`: a string; `false`: none.
    """
    if schema_type in ("true", "false"):
        return _TEXT if schema_type == "true" else ANY
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    types = default
    if isinstance(properties, Mapping) and key in properties:
        types = types_in(properties[key], schema)
    if schema_type == "string":
        return types if types == _NULLABLE else _TEXT
    if schema_type is None or (schema_type in types and schema_type in _CONTAINERS):
        return types
    return ANY  # JSON: null, and values of any type, are written beside the name of another type


def types_in(part: object, root: object) -> Types:
    """The types that `part` of the schema `root` names."""
    return _types(part, root, iter(range(_MOST)))


def _types(schema: object, root: object, budget: Iterator[int]) -> Types:
    """`budget`: an element for each schema that may still be searched: a client's schema may refer to itself."""
    if not isinstance(schema, Mapping) or next(budget, None) is None:
        return ANY
    if isinstance(schema.get("$ref"), str):
        return _types(looked_up(schema["$ref"], root), root, budget)
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset({kind})
    if isinstance(kind, list):
        return frozenset(str(n) for n in kind)
    choices = [c for key in ("anyOf", "oneOf", "allOf") if isinstance(c := schema.get(key), list)]
    several = [_types(choice, root, budget) for some in choices for choice in some[:_MOST]]
    if several:  # if one is unknown, so is the whole
        return frozenset().union(*several) if all(several) else ANY
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return frozenset(_TYPES.get(type(v), "null") for v in values[:_MOST]) if isinstance(values, list) else ANY


def as_json(text: str, types: Types) -> str:
    """`text` as JSON of one of `types`; a string if it is none of them."""
    bare = text.strip()
    if "null" in types and (bare == "null" or (bare == "None" and "string" not in types)):
        return "null"
    if bare in _LITERALS and "boolean" in types:
        return _LITERALS[bare]
    if types & {"number", "integer"} and _NUMBER(bare):
        return bare
    if types == ANY or types & _CONTAINERS.keys():
        try:
            value = json.loads(bare, parse_constant=_refuse)
        except (ValueError, RecursionError):
            value = text
            if types & _CONTAINERS.keys() and (json_text := _of_python(bare)):
                return json_text
        if (types == ANY and not isinstance(value, str)) or any(
            isinstance(value, kind) for name, kind in _CONTAINERS.items() if name in types
        ):
            return bare
        if types == ANY and bare in _LITERALS:
            return _LITERALS[bare]
        if types == ANY and isinstance(value, str):
            text = value
    return quote(text)


def _of_python(text: str) -> str:
    """A list or dictionary as Python writes it, as JSON; "": it is none. Some chat templates write them so."""
    if text[:1] not in ("{", "[") or len(text) > _LONGEST_LITERAL:
        return ""
    try:
        with warnings.catch_warnings(action="ignore"):
            return json.dumps(ast.literal_eval(text), ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return ""


def _refuse(name: str) -> None:
    raise ValueError(name)


class ParameterValue:
    """A value of a call. Strings are passed on as they come, other values when they are complete."""

    def __init__(self, call: Call, before: str, key: str, types: Types) -> None:
        self._call, self._types = call, types
        self._before = f"{before}{quote(key)}: "
        self._line = ""
        self._held: list[str] | None = [] if types != {"string"} else None
        self._size = 0
        self._streams = False  # whether the beginning of a string was passed on

    def frame(self, line: str) -> None:
        """Leaves out `line`, with which the text begins."""
        self._line = line

    def add(self, text: str) -> None:
        if self._streams:
            self._call.add(quote(text)[1:-1])
            return
        if self._line:
            text, self._line = text.removeprefix(self._line), ""
            if not text:
                return
        if self._held is not None:
            self._held.append(text)
            self._size += len(text)
            if self._types != _NULLABLE or self._size <= len("null"):
                return
            text, self._held = "".join(self._held), None
        self._streams = True
        self._call.add(self._before + quote(text)[:-1])

    def finish(self) -> None:
        """The value is complete; it may be empty."""
        if self._held is not None:
            self._call.add(self._before + as_json("".join(self._held), self._types))
        else:
            self._call.add('"' if self._streams else self._before + '""')
