"""The contract of TensorRT-LLM's API, as it is and with a name changed."""

import json
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

_APIS = Path(__file__).parent.parent / "contract/apis"
Contract = dict[str, Any]


class Use(NamedTuple):
    """Something of the API that was used."""

    owner: str  # a class, or `wire`
    name: str  # a field, a method, a key; or `method.parameter`


@cache
def _read() -> Contract:
    contract: Contract = json.loads((_APIS / "tensorrt_llm.json").read_text())
    for file in ("tensorrt_llm_more.json", "tensorrt_llm_visual.json"):
        more = json.loads((_APIS / file).read_text())
        for name, spec in more["classes"].items():
            entry = contract["classes"].setdefault(name, spec)
            entry["fields"] |= spec["fields"]
            entry["methods"] |= spec.get("methods", {})
    return contract


def contract(without: Use | None = None) -> Contract:
    """`without`: this is called something else."""
    variant = deepcopy(_read())
    if without is None:
        return variant
    if without.owner == "wire":
        variant["renamed"] = without.name
        return variant
    spec = variant["classes"][without.owner]
    method, _, parameter = without.name.partition(".")
    if parameter:
        for param in spec["methods"][method]["params"]:
            if param["name"] == parameter:
                param["name"] += "_renamed"
        return variant
    for members in (spec["fields"], spec["methods"]):
        if method in members:
            members[f"{method}_renamed"] = members.pop(method)
    return variant


def wire_names() -> set[str]:
    """All keys that events, statistics and capacities may have."""
    keys: set[str] = set()

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            keys.update(node)
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            keys.update(item for item in node if isinstance(item, str))
            for item in node:
                walk(item)

    walk(_read()["wire"])
    return keys
