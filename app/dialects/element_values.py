"""Arguments between tags of their own names, as parts of a structural tag."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from app.dialects.call_grammar import TEXT, Format, const, optional, schema, sequence, tag
from app.dialects.parameter_value import types_in
from app.dialects.references import looked_up, self_contained
from app.dialects.texts import HELD_TEXT, counts, one_of, text_until

ITEM = "item"  # the tag of a list's elements
_NAME = re.compile(r"[^\s<>/]+").fullmatch
_TEXT = frozenset({"string"})
_SCALARS = frozenset({"integer", "number", "boolean"})
_DEEPEST = 32  # parts within each other
_MOST = 4096  # parts of a schema, each as often as it is referred to
_UNSEEN = {"allOf", "anyOf", "maxProperties", "minProperties", "oneOf", "patternProperties", "prefixItems"}


class ElementValues:
    """Values of the schema `root`, between tags; `mark` stands before each tag."""

    def __init__(self, mark: str, root: Any) -> None:
        self._mark, self._root = mark, root
        self._room = _MOST
        self.unheld: list[str] = []  # what the schema asks for and the parts don't see to

    def members(self, part: Mapping[str, Any], path: str = "", within: Sequence[str] = ()) -> list[Format]:
        """The declared properties, in their order. Raises: ValueError."""
        properties, required_keys = part.get("properties") or {}, part.get("required") or ()
        self._note(
            path, (part.keys() & _UNSEEN) | {f"required.{key}" for key in required_keys if key not in properties}
        )
        elements = [
            (self._element(key, of, f"{path}.{key}", within), key in required_keys) for key, of in properties.items()
        ]
        return [element if is_required else optional(element) for element, is_required in elements]

    def _element(self, key: str, part: Any, path: str, within: Sequence[str]) -> Format:
        """`within`: the references and names that led here."""
        self._room -= 1
        if self._room < 0 or len(within) > _DEEPEST:
            raise ValueError(
                f"at most {_MOST} values, each as often as it is referred to, and {_DEEPEST} in each other"
            )
        if not _NAME(key):
            raise ValueError("this model writes arguments between tags of their names, and one of these is no tag")
        begin, end = f"{self._mark}<{key}>", f"{self._mark}</{key}>"
        of = part if isinstance(part, Mapping) else {}
        if isinstance(reference := of.get("$ref"), str):
            if reference not in within:
                return self._element(key, looked_up(reference, self._root), path, [*within, reference])
            self._note(path, {"$ref"})
            return tag(begin, TEXT, end)
        return self._typed(begin, end, of, path, [*within, key])

    def _typed(self, begin: str, end: str, of: Mapping[str, Any], path: str, within: Sequence[str]) -> Format:
        types = types_in(of, self._root) - {"null"}
        values = of.get("enum") or ([of["const"]] if "const" in of else [])
        if values and all(isinstance(value, str) for value in values):
            return sequence(const(begin), one_of(values), const(end))
        if types == {"object"} and "properties" in of:
            return sequence(const(begin), *self.members(of, path, within), const(end))
        if types == {"array"} and "items" in of:
            self._note(path, of.keys() & _UNSEEN)
            least, most = counts(of, "minItems", "maxItems")
            if most == 0:
                return const(begin + end)
            item = self._element(ITEM, of["items"], f"{path}.items", within)
            items = {"type": "repeat", "min": least, "max": -1 if most is None else most, "content": item}
            return sequence(const(begin), items, const(end))
        if types and not types - _SCALARS:
            return tag(begin, schema(self_contained(of, self._root)), end)
        if types == _TEXT:
            text, unheld = text_until(end, of)
            self._note(path, {unheld} - {""})
            return sequence(const(begin), text)
        self._note(path, (of.keys() & (_UNSEEN | HELD_TEXT)) | ({"type"} if types - _TEXT else set()))
        return tag(begin, TEXT, end)

    def _note(self, path: str, unheld: set[str]) -> None:
        self.unheld += [f"{path}.{key}".lstrip(".") for key in sorted(unheld)]
