"""YAML as configuration files have it."""

from typing import Any

import yaml


class UniqueLoader(yaml.SafeLoader):
    """Refuses duplicate keys, of which YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        named = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        keys = [self.construct_object(key, deep=True) for key in named]
        for key in keys:
            if isinstance(key, str) and keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"'{key}' is there twice", node.start_mark)
        return super().construct_mapping(node, deep)
