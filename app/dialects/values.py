"""Values of a schema in a notation other than JSON's, as parts of a structural tag."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.dialects.call_grammar import Format, const, optional, sequence, tag
from app.dialects.references import looked_up
from app.dialects.texts import HELD_TEXT, counts, one_of, text_until

_MOST = 4096  # values of a schema, each as often as it is referred to
_DEEPEST = 64  # of these within each other; structural tags allow fewer
_INTEGER = r"-?(0|[1-9][0-9]{0,30})"
_NUMBER = _INTEGER + r"(\.[0-9]{1,30})?([eE][+\-]?[0-9]{1,2})?"
_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_HELD = {
    "string": HELD_TEXT,
    "integer": _BOUNDS,
    "number": _BOUNDS,
    "array": {"items", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties"},
}
_CHOICES = {"allOf", "anyOf", "oneOf"}
_UNHELD = {
    "array": _CHOICES | {"additionalItems", "prefixItems"},
    "object": _CHOICES | {"maxProperties", "minProperties", "patternProperties"},
}
_CONSTRAINTS = set().union(*_HELD.values(), *_UNHELD.values())
_BARE = re.compile(r"[^\s:,{}\[\]\"<](?:[^:,{}\[\]\"<]*[^\s:,{}\[\]\"<])?").fullmatch


@dataclass(frozen=True)
class Spelling:
    """A way to write values: what is not as in JSON."""

    string: str  # stands on both sides of a text
    escapes: bool  # in a text, as in JSON
    bare_keys: bool  # and in alphabetical order
    separator: str
    colon: str
    true: str = "true"
    false: str = "false"
    null: str = "null"

    def write(self, value: Any) -> str:
        """Raises: ValueError for a text that can't be written."""
        if value is None or isinstance(value, bool):
            return self.null if value is None else self.true if value else self.false
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list):
            return f"[{self.separator.join(map(self.write, value))}]"
        if isinstance(value, dict):
            return "{" + self.separator.join(self.key(key) + self.write(v) for key, v in value.items()) + "}"
        return json.dumps(value)

    def key(self, name: str) -> str:
        return (name if self.bare_keys and _BARE(name) else self._text(name)) + self.colon

    def _text(self, text: str) -> str:
        if self.escapes:
            return json.dumps(text, ensure_ascii=False)
        if self.string in text:
            raise ValueError(f"a text with {self.string} can't be written")
        return self.string + text + self.string

    def free(self, root: str) -> Format:
        """Any value, any `object`, or what is within its braces: `members`, or `keywords` with Python's names."""
        quote, name = json.dumps(self.string), "[A-Za-z_] [A-Za-z0-9_]{0,63}"
        unit = r'[^"\\\x00-\x1f] | "\\" ["\\bfnrt]' if self.escapes else '[^{0}] | "{0}" [^{0}{1}]'.format(*self.string)
        pair = f"{f'({name} | text)' if self.bare_keys else 'text'} {json.dumps(self.colon)} value"
        comma = json.dumps(self.separator)
        words = " | ".join(json.dumps(word) for word in (self.true, self.false, self.null))
        rules = (
            f"root ::= {root}",
            f"value ::= object | list | text | number | {words}",
            'object ::= "{" members "}"',
            f"members ::= ({pair} ({comma} {pair})*)?",
            f'keywords ::= ({name} "=" value ({comma} {name} "=" value)*)?',
            f'list ::= "[" (value ({comma} value)*)? "]"',
            f"text ::= {quote} ({unit})* {quote}",
            r'number ::= "-"? ("0" | [1-9] [0-9]{0,30}) ("." [0-9]{1,30})?',
        )
        return {"type": "grammar", "grammar": "\n".join(rules)}


class Values:
    """Formats of the schema `root`. Declared properties come in their order, and no others where there are some."""

    def __init__(self, spelling: Spelling, root: Any) -> None:
        self._spelling, self._root = spelling, root
        self._room, self._depth = _MOST, 0
        self.unheld: list[str] = []  # what the schema asks for and the parts don't see to

    def value(self, part: Any, path: str = "", within: Sequence[str] = ()) -> Format:
        """`within`: the references that led here. Raises: ValueError for too large a schema."""
        self._room -= 1
        if self._room < 0:
            raise ValueError(f"at most {_MOST} values, each as often as it is referred to")
        if self._depth == _DEEPEST:
            raise ValueError(f"at most {_DEEPEST} values within each other, with all references followed")
        self._depth += 1
        result = self._value(part, path, within)
        self._depth -= 1
        return result

    def _value(self, part: Any, path: str, within: Sequence[str]) -> Format:
        if not isinstance(part, Mapping):
            return self._spelling.free("value")
        if isinstance(reference := part.get("$ref"), str):
            if reference in within:
                self.unheld.append(f"{path}.$ref".lstrip(".") + " to what it is in")
                return self._spelling.free("value")
            return self.value(looked_up(reference, self._root), path, [*within, reference])
        values = part["enum"] if "enum" in part else [part["const"]] if "const" in part else None
        if values is not None:
            self._note(part, path, _CONSTRAINTS)
            return one_of(map(self._spelling.write, values))
        return self._any_type(part, path, within)

    def arguments(self, write_key: Callable[[str], str] | None = None) -> Format:
        """All properties of the root. `write_key`: "" for one that is left out. Raises: ValueError."""
        if is_free(self._root):
            return self._spelling.free("members" if write_key is None else "keywords")
        self._note(self._root, "", _UNHELD["object"])
        return sequence(const(""), *self._members(self._root, "", (), write_key or self._spelling.key))

    def _members(
        self, part: Mapping[str, Any], path: str, within: Sequence[str], write_key: Callable[[str], str]
    ) -> list[Format]:
        properties, required_keys = part.get("properties") or {}, part.get("required") or ()
        keys = [*properties, *(key for key in required_keys if key not in properties)]
        if self._spelling.bare_keys:
            keys.sort(key=str.lower)
        pairs = [
            (sequence(const(key_text), self.value(properties.get(key), f"{path}.{key}", within)), key in required_keys)
            for key in keys
            if (key_text := write_key(key))
        ]
        return listed(pairs, self._spelling.separator)

    def _any_type(self, part: Mapping[str, Any], path: str, within: Sequence[str]) -> Format:
        type_field = part.get("type", "object" if "properties" in part else "array" if "items" in part else [])
        kinds = [type_field] if isinstance(type_field, str) else list(type_field)
        key = next((key for key in ("anyOf", "oneOf", "allOf") if part.get(key)), "")
        if key and not kinds and (key != "allOf" or len(part[key]) == 1):
            self._note(part, path, _CONSTRAINTS - {key})
            return _or([self.value(choice, f"{path}.{key}.{i}", within) for i, choice in enumerate(part[key])])
        if not kinds:
            self._note(part, path, _CONSTRAINTS)
            return self._spelling.free("value")
        self._note(part, path, _CHOICES.union(*(_UNHELD.get(kind, ()) for kind in kinds)))
        return _or([self._typed(kind, part, path, within) for kind in kinds])

    def _typed(self, kind: str, part: Mapping[str, Any], path: str, within: Sequence[str]) -> Format:
        spelling = self._spelling
        match kind:
            case "string":
                return self._string(part, path)
            case "integer" | "number":
                bounds = {key: part[key] for key in sorted(_BOUNDS & part.keys())}
                if bounds:
                    return {"type": "json_schema", "json_schema": {"type": kind, **bounds}}
                return _regex(_INTEGER if kind == "integer" else _NUMBER)
            case "boolean":
                return one_of((spelling.true, spelling.false))
            case "array":
                return self._array(part, path, within)
            case "object":
                return self._object(part, path, within)
        return const(spelling.null)

    def _string(self, part: Mapping[str, Any], path: str) -> Format:
        spelling = self._spelling
        if spelling.escapes:
            if {"pattern", "format"} & part.keys():
                keywords = {key: part[key] for key in sorted(_HELD["string"] & part.keys())}
                return {"type": "json_schema", "json_schema": {"type": "string", **keywords}}
            least, most = counts(part, "minLength", "maxLength")
            times = f"{{{least},{'' if most is None else most}}}"
            return _regex(rf'"([^"\\\x00-\x1f]|\\["\\bfnrt]){times}"')
        text, unheld = text_until(spelling.string, part)
        if unheld:
            self.unheld.append(f"{path}.{unheld}".lstrip("."))
        return sequence(const(spelling.string), text)

    def _array(self, part: Mapping[str, Any], path: str, within: Sequence[str]) -> Format:
        (least, most), separator = counts(part, "minItems", "maxItems"), self._spelling.separator
        if most == 0:
            return const("[]")
        item = self.value(part.get("items"), f"{path}.items", within)
        if least <= 1 and most is None:
            several: Format = {"type": "tags_with_separator", "tags": _tags(item), "separator": separator}
            return tag("[", several | {"at_least_one": bool(least), "stop_after_first": False}, "]")
        bounds = {"min": max(0, least - 1), "max": -1 if most is None else most - 1}
        more: Format = {"type": "repeat", **bounds, "content": sequence(const(separator), item)}
        some = item if most == 1 else sequence(item, more)
        return tag("[", some if least else optional(some), "]")

    def _object(self, part: Mapping[str, Any], path: str, within: Sequence[str]) -> Format:
        if not is_free(part):
            members = self._members(part, path, within, self._spelling.key)
            return tag("{", sequence(const(""), *members), "}")
        if isinstance(part.get("additionalProperties"), Mapping):
            self.unheld.append(f"{path}.additionalProperties".lstrip("."))
        return self._spelling.free("object")

    def _note(self, part: Mapping[str, Any], path: str, unheld: set[str]) -> None:
        self.unheld += [f"{path}.{key}".lstrip(".") for key in sorted(part.keys() & unheld)]


def is_free(schema: Mapping[str, Any]) -> bool:
    """Whether an object of it may have any properties and need have none."""
    return not {"properties", "required"} & schema.keys() and schema.get("additionalProperties") is not False


def listed(parts: Sequence[tuple[Format, bool]], separator: str) -> list[Format]:
    """One behind the other, each whether it has to be there; a separator stands between those that are."""
    first = next((i for i, (_, is_required) in enumerate(parts) if is_required), None)
    if first is None:
        return [optional(_some([part for part, _ in parts], separator))] if parts else []
    before = [optional(sequence(part, const(separator))) for part, _ in parts[:first]]
    behind = [(sequence(const(separator), part), is_required) for part, is_required in parts[first + 1 :]]
    return [*before, parts[first][0], *(part if is_required else optional(part) for part, is_required in behind)]


def _some(parts: Sequence[Format], separator: str) -> Format:
    """A format of at least one of the parts, made by halves, so that each part is there only a few times."""
    if len(parts) == 1:
        return parts[0]
    first_half, second_half = (_some(half, separator) for half in (parts[: len(parts) // 2], parts[len(parts) // 2 :]))
    return _or([sequence(first_half, optional(sequence(const(separator), second_half))), second_half])


def _or(options: Iterable[Format]) -> Format:
    elements = list(options)
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": elements}


def _tags(item: Format) -> list[Format]:
    """The item as tags. xgrammar wants a tag to have an end if a part of it has any number of others."""
    if item["type"] == "or":
        return [part for option in item["elements"] for part in _tags(option)]
    return [item if item["type"] == "tag" else tag("", item, "")]


def _regex(pattern: str) -> Format:
    return {"type": "regex", "pattern": pattern}
