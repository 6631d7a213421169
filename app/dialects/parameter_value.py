"""A parameter's text as JSON, of the type that the tool's schema names."""

import json
import re
from collections.abc import Iterator, Mapping
from json.encoder import encode_basestring as quote

from app.dialects.parts import Call
from app.dialects.references import found

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?").fullmatch
_LITERALS = {"true": "true", "True": "true", "false": "false", "False": "false"}
_NULLS = ("null", "None")
_CONTAINERS = {"object": dict, "array": list}
Types = frozenset[str]
_MOST = 64  # schemas that a parameter's type is looked for in
ANY: Types = frozenset()  # no type is named
_NULLABLE = frozenset({"string", "null"})


def types_of(schema: object, key: str, written: str | None) -> Types:
    """Of a tool's parameter. `written`: what the model says of it, a type or whether it is a string."""
    if written == "true":
        return frozenset({"string"})
    if written is not None:
        return frozenset({written}) if written != "false" else ANY
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return _types(properties.get(key), schema, iter(range(_MOST))) if isinstance(properties, Mapping) else ANY


def _types(schema: object, root: object, room: Iterator[int]) -> Types:
    """`room`: one for each schema that is looked at, since the client's may refer to themselves many times."""
    if not isinstance(schema, Mapping) or next(room, None) is None:
        return ANY
    if isinstance(schema.get("$ref"), str):
        return _types(found(schema["$ref"], root), root, room)
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset({named})
    if isinstance(named, list):
        return frozenset(str(n) for n in named)
    choices = [c for key in ("anyOf", "oneOf", "allOf") if isinstance(c := schema.get(key), list)]
    several = [_types(choice, root, room) for some in choices for choice in some[:_MOST]]
    if several:  # of which one is unknown, all are
        return frozenset().union(*several) if all(several) else ANY
    values = schema.get("enum")
    texts = isinstance(values, list) and values and all(isinstance(v, str) for v in values)
    return frozenset({"string"}) if texts else ANY


def as_json(text: str, types: Types) -> str:
    """What `text` is as one of `types`; a string where it is none of them."""
    bare = text.strip()
    if bare in _NULLS and "null" in types:
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
        if (types == ANY and not isinstance(value, str)) or any(
            isinstance(value, kind) for name, kind in _CONTAINERS.items() if name in types
        ):
            return bare
        if types == ANY and bare in _LITERALS:
            return _LITERALS[bare]
        if types == ANY and isinstance(value, str):
            text = value
    return quote(text)


def _refuse(name: str) -> None:
    raise ValueError(name)


class ParameterValue:
    """Of a call; strings are passed on as they come, all else once it is whole."""

    def __init__(self, call: Call, before: str, key: str, types: Types) -> None:
        self._call, self._types = call, types
        self._before = f"{before}{quote(key)}: "
        self._line = ""
        self._held: list[str] | None = [] if types != {"string"} else None
        self._size = 0
        self._streams = False  # the beginning of a string was passed on

    def frame(self, line: str) -> None:
        """The value begins behind `line`."""
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
        """The value is whole, be it empty."""
        if self._held is not None:
            self._call.add(self._before + as_json("".join(self._held), self._types))
        else:
            self._call.add('"' if self._streams else self._before + '""')
