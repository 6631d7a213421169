"""Names that an engine's sources have: of fields, parameters, parsers and metrics. Nothing is imported."""

import ast
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

_METRIC = re.compile(r"""["']((?:vllm|sglang):[a-z][a-z0-9_]+)["']""")
_NOT_SERVING = {"benchmarks", "benchmark", "test", "multimodal_gen"}


class Part(NamedTuple):
    file: str  # below the package's folder
    read: Callable[[Path], set[str]]


def surface(package: Path, engine: str) -> dict[str, set[str]]:
    """The names of each part; none where the version has no such file."""
    names = {}
    for name, part in PARTS[engine].items():
        path = package / part.file
        names[name] = part.read(path) if path.exists() else set()
    return names


def _fields(path: Path, base: str, *more: str) -> set[str]:
    """Fields, as Class.field, of `base`, of the other classes that are named, and of all that derive from these."""
    classes = {node.name: node for node in ast.walk(_tree(path)) if isinstance(node, ast.ClassDef)}

    def derives(node: ast.ClassDef) -> bool:
        bases = {one.id for one in node.bases if isinstance(one, ast.Name)}
        return node.name in (base, *more) or any(one in classes and derives(classes[one]) for one in bases)

    return {f"{name}.{field}" for name, node in classes.items() if derives(node) for field in _annotated(node)}


def _own_fields(path: Path, name: str) -> set[str]:
    return {field for node in _classes(path, name) for field in _annotated(node) if not field.startswith("_")}


def _members(path: Path, name: str) -> set[str]:
    """Names of an enum's members."""
    return {
        target.id
        for node in _classes(path, name)
        for line in node.body
        if isinstance(line, ast.Assign)
        for target in line.targets
        if isinstance(target, ast.Name)
    }


def _returned_keys(path: Path, name: str) -> set[str]:
    """The keys of the dicts that a function writes."""
    functions = [node for node in ast.walk(_tree(path)) if isinstance(node, ast.FunctionDef) and node.name == name]
    return {key for function in functions for node in ast.walk(function) for key in _keys(node)}


def parsers(path: Path) -> set[str]:
    """The keys of tables of parsers: a tuple with its class's name for each, or its class."""
    return {
        str(key.value)
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant)
        and (isinstance(value, ast.Tuple) or (isinstance(value, ast.Name) and value.id.endswith("Detector")))
        and key.value not in ("high", "medium", "low")  # efforts
    }


def metrics(folder: Path) -> set[str]:
    files = (path for path in folder.rglob("*.py") if not _NOT_SERVING & {*path.relative_to(folder).parts})
    return {name for path in files for name in _METRIC.findall(path.read_text(errors="replace"))}


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _classes(path: Path, name: str) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(_tree(path)) if isinstance(node, ast.ClassDef) and node.name == name)


def _annotated(node: ast.ClassDef) -> list[str]:
    return [
        line.target.id for line in node.body if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    ]


def _keys(node: ast.AST) -> list[str]:
    if not isinstance(node, ast.Dict):
        return []
    return [key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]


_EVENT = partial(_fields, base="KVCacheEvent")
_SPEC = partial(_fields, base="KVCacheSpec")
PARTS: dict[str, dict[str, Part]] = {
    "vllm": {
        "fields of KV events": Part("distributed/kv_events.py", _EVENT),
        "kinds of KV blocks": Part("v1/kv_cache_interface.py", partial(_members, name="KVCacheSpecKind")),
        "fields of KV block kinds": Part("v1/kv_cache_interface.py", _SPEC),
        "fields of KV groups": Part("v1/kv_cache_interface.py", partial(_own_fields, name="KVCacheGroupSpec")),
        "keys of KV group metadata": Part(
            "v1/engine/core.py", partial(_returned_keys, name="get_kv_cache_group_metadata")
        ),
        "sampling parameters": Part("sampling_params.py", partial(_own_fields, name="SamplingParams")),
        "tool parsers": Part("tool_parsers/__init__.py", parsers),
        "reasoning parsers": Part("reasoning/__init__.py", parsers),
        "metrics": Part("", metrics),
    },
    "sglang": {
        "fields of KV events": Part("srt/disaggregation/kv_events.py", _EVENT),
        "sampling parameters": Part("srt/sampling/sampling_params.py", partial(_own_fields, name="SamplingParams")),
        "tool parsers": Part("srt/function_call/function_call_parser.py", parsers),
        "reasoning parsers": Part("srt/parser/reasoning_parser.py", parsers),
        "metrics": Part("", metrics),
    },
}
