"""Structs that are arrays on the wire: what stands at which place may never change, as older processes read it."""

import ast
import importlib
import json
from pathlib import Path
from typing import cast

from msgspec import Struct

from tests.stack import ROOT

# Its fields by each struct's name, in their order on the wire. A new field gets its line at the end of its list.
ORDER: dict[str, list[str]] = json.loads(Path(__file__).with_name("wire_order.json").read_text())


def names_of_arrays() -> set[str]:
    """The structs with `array_like`, as module and name."""
    names = set()
    for folder in ("app", "workers"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and any(word.arg == "array_like" for word in node.keywords):
                    names.add(".".join([*path.relative_to(ROOT).with_suffix("").parts, node.name]))
    return names


def fields(name: str) -> list[str]:
    module, _, cls = name.rpartition(".")
    return list(cast(type[Struct], getattr(importlib.import_module(module), cls)).__struct_encode_fields__)


def test_the_order_of_fields_on_the_wire_is_as_written_down() -> None:
    """A struct that is made by keywords would let its fields change places unseen."""
    assert {name: fields(name) for name in names_of_arrays()} == ORDER
