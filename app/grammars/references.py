"""Measures how deep a grammar's references lead. Compilers recurse over them, and end their process if too deep."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar
from urllib.parse import unquote

T = TypeVar("T")

_DEEPEST = 500  # levels, with all references followed: llguidance dies of 1,400 on a stack of 4 MiB
_SAME_PLACE = ("allOf", "anyOf", "oneOf")  # schemas of the same value, as a reference's is
# Texts, regular expressions, classes and comments, which may have anything in them; or a name, perhaps of a rule that
# begins.
_LARK = re.compile(r'"(?:\\.|[^"\\])*"|/(?:\\.|[^/\\\n])+/|//[^\n]*|[!?]*(\w+)((?:\.-?\d+)?\s*:)?')
_EBNF = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*|([\w.-]+)(\s*::=)?')


class _Circle(ValueError):
    """A node leads to itself."""


def check_schema_references(schema: Any) -> None:
    """Checks a schema whose JSON is not deep. Raises: ValueError for references that lead too deep, or nowhere."""
    if not isinstance(schema, dict):
        return

    def same(node: Any) -> Iterator[Any]:
        if isinstance(node, dict):
            for key in _SAME_PLACE:
                if isinstance(inner := node.get(key), list):
                    yield from inner
            yield from _referred(schema, node)

    def within(node: Any) -> Iterator[Any]:
        if isinstance(node, dict):
            yield from node.values()
            yield from _referred(schema, node)
        elif isinstance(node, list):
            yield from node

    subschemas = list(_reachable(schema, within))
    try:
        _depth(subschemas, same, circles=False)
    except _Circle:
        raise ValueError("'$ref' leads back to where it stands, with no property or item between") from None
    _check_depth(_depth(subschemas[:1], within))


def check_rule_references(grammar: str) -> None:
    """Checks EBNF or Lark. Raises: ValueError for rules that lead too deep."""
    rules: dict[str, list[str]] = {}
    names: list[str] = []
    for match in (_EBNF if "::=" in grammar else _LARK).finditer(grammar):
        name, begins = match[1], match[2]
        if begins is not None:
            names = rules.setdefault(name, [])
        elif name is not None:
            names.append(name)
    nodes = {name: name for name in rules}  # one object for each name
    _check_depth(_depth(list(nodes.values()), lambda name: [nodes[n] for n in rules[name] if n in nodes]))


def _check_depth(depth: int) -> None:
    if depth > _DEEPEST:
        raise ValueError(f"its references lead more than {_DEEPEST} levels deep")


def _referred(schema: Any, node: dict[str, Any]) -> Iterator[Any]:
    """Yields the node that a reference within the schema leads to; nothing for others, which no compiler follows."""
    to = node.get("$ref")
    if not isinstance(to, str) or not to.startswith("#"):
        return
    target = schema
    for part in unquote(to[1:]).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list) and key.isdecimal() and int(key) < len(target):
            target = target[int(key)]
        elif isinstance(target, dict) and key in target:
            target = target[key]
        else:
            return
    yield target


def _reachable(first: T, after: Callable[[T], Iterable[T]]) -> list[T]:
    seen_ids, nodes = {id(first)}, [first]
    for node in nodes:
        for inner in after(node):
            if id(inner) not in seen_ids:
                seen_ids.add(id(inner))
                nodes.append(inner)
    return nodes


def _depth(nodes: Sequence[T], after: Callable[[T], Iterable[T]], *, circles: bool = True) -> int:
    """Length of the longest way from one of the nodes, in nodes; ways that come back to a node end there.

    Uses no recursion. Raises: _Circle for such a way, unless `circles` are allowed.
    """
    depths: dict[int, int] = {}  # by identity; 0: on the way to here
    for first in nodes:
        if id(first) in depths:
            continue
        depths[id(first)] = 0
        way = [(first, iter(after(first)), 1)]
        while way:
            node, rest, deepest = way.pop()
            for inner in rest:
                depth = depths.get(id(inner))
                if depth is None:
                    way += [(node, rest, deepest), (inner, iter(after(inner)), 1)]
                    depths[id(inner)] = 0
                    break
                if not depth and not circles:
                    raise _Circle
                deepest = max(deepest, depth + 1)
            else:
                depths[id(node)] = deepest
                if way:
                    above, others, so_far = way.pop()
                    way.append((above, others, max(so_far, deepest + 1)))
    return max(depths.values(), default=0)
