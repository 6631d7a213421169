"""The names of an engine that the adapters know, by their own code; `ignored.yaml` has reasons to ignore the rest."""

import ast
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import msgspec
import yaml

from app.dialects.names import find_dialect, nearest
from app.kv import events
from ops.engines.surface import metrics

ROOT = Path(__file__).parents[2]
_IGNORED = Path(__file__).with_name("ignored.yaml")
# Where a new name is decided on, for each part.
DECIDE = {
    "fields of KV events": "read it in app/kv/events.py if it is in a block's hash or says where the block lies",
    "kinds of KV blocks": "name what its layers see in SEES of app/engines/vllm/groups.py",
    "fields of KV block kinds": "see whether it changes which tokens a group keeps or can resume at (app/kv/)",
    "fields of KV groups": "see whether it changes which tokens a group keeps or can resume at (app/kv/)",
    "keys of KV group metadata": "read it in app/engines/vllm/groups.py",
    "sampling parameters": "pass it in the adapter's convert.py, with a field of Sampling if clients are to set it",
    "tool parsers": "add its format or an alias in app/dialects/",
    "reasoning parsers": "add its format or an alias in app/dialects/",
    "metrics": "read it in the adapter if workers are to show it",
}


def ignored(engine: str) -> Mapping[str, Mapping[str, str]]:
    """The reason for each name of each part."""
    names_by_reason = yaml.safe_load(_IGNORED.read_text())[engine]
    return {
        part: {name: reason for reason, names in reasons.items() for name in names}
        for part, reasons in names_by_reason.items()
    }


def known(engine: str, part: str, names: set[str]) -> set[str]:
    """The ones among the names that the project's code deals with."""
    return {name for name in names if _KNOWS[part](engine, name)}


def undecided(engine: str, found: Mapping[str, set[str]]) -> list[str]:
    """A sentence for each part of an engine that has new names."""
    sentences = []
    for part, names in found.items():
        new = names - known(engine, part, names) - ignored(engine).get(part, {}).keys()
        if new:
            sentences.append(
                f"{engine} has new {part}: {', '.join(sorted(new))}. For each, {DECIDE[part]}, "
                "or give a reason to ignore it in ops/engines/ignored.yaml."
            )
    return sentences


def _event_field(_engine: str, name: str) -> bool:
    kind, _, field = name.partition(".")
    ours = getattr(events, kind, None)
    return ours is not None and field in {one.name for one in msgspec.structs.fields(ours)}


def _parser(_engine: str, name: str) -> bool:
    return find_dialect(name) is not None or bool(nearest(name))


@cache
def _nodes(engine: str) -> list[ast.AST]:
    """The adapter's code."""
    files = (ROOT / "app/engines" / engine).rglob("*.py")
    return [node for path in files for node in ast.walk(ast.parse(path.read_text()))]


def _in_adapter(named: Callable[[ast.AST], list[str]]) -> Callable[[str, str], bool]:
    return lambda engine, name: any(name in named(node) for node in _nodes(engine))


def _metric(engine: str, name: str) -> bool:
    return name in metrics(ROOT / "app/engines" / engine)


def _sampling(node: ast.AST) -> list[str]:
    """Names of the arguments of vLLM's SamplingParams, and of the keys in SGLang's dict."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "SamplingParams":
        return [keyword.arg or "" for keyword in node.keywords]
    if isinstance(node, ast.FunctionDef) and node.name in ("sampling_params", "_grammar"):
        inside = [one for one in ast.walk(node) if isinstance(one, ast.Dict)]
        return [key.value for one in inside for key in one.keys if isinstance(key, ast.Constant)]
    return []


def _kind(node: ast.AST) -> list[str]:
    ours = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "KVCacheSpecKind"
    return [node.attr] if ours and isinstance(node, ast.Attribute) else []


def _subscript(node: ast.AST) -> list[str]:
    return [str(node.slice.value)] if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) else []


def _nowhere(_engine: str, _name: str) -> bool:
    return False


_KNOWS: dict[str, Callable[[str, str], bool]] = {
    "fields of KV events": _event_field,
    "kinds of KV blocks": _in_adapter(_kind),
    "fields of KV block kinds": _nowhere,
    "fields of KV groups": _nowhere,
    "keys of KV group metadata": _in_adapter(_subscript),
    "sampling parameters": _in_adapter(_sampling),
    "tool parsers": _parser,
    "reasoning parsers": _parser,
    "metrics": _metric,
}
