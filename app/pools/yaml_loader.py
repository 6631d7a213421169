"""YAML as configuration files have it."""

from typing import Any

import yaml

_TAG = "tag:yaml.org,2002:"
_MERGE, _TEXT, _NUMBERS, _TIME = f"{_TAG}merge", f"{_TAG}str", (f"{_TAG}int", f"{_TAG}float"), f"{_TAG}timestamp"


def read_yaml(text: str) -> Any:
    """The document. Raises: yaml.YAMLError."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 (a SafeLoader)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deep") from None


class _Loader(yaml.SafeLoader):
    """Refuses duplicate keys, of which YAML would silently keep the last.

    `1:30` and `2027-01-31` are texts, as in YAML 1.2, not 90 and a date: whoever wants a time reads it. (Libraries
    that engines bring change for the whole process how PyYAML makes dates.)
    """

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> Any:
        tag = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        return _TEXT if tag == _TIME or (tag in _NUMBERS and ":" in value) else tag

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, AttributeError) as exc:  # such as !!int of a word
            what = f"{node.value!r:.100} is no {node.tag.removeprefix(_TAG)}"
            raise yaml.constructor.ConstructorError(None, None, what, node.start_mark) from exc

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        if isinstance(node, yaml.MappingNode):
            key_nodes = [key for key, _ in node.value if key.tag != _MERGE]
            keys = [self.construct_object(key, deep=True) for key in key_nodes]
            for key in keys:
                if isinstance(key, str) and keys.count(key) > 1:
                    raise yaml.constructor.ConstructorError(None, None, f"'{key}' is there twice", node.start_mark)
        return super().construct_mapping(node, deep)
