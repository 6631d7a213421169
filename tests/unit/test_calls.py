"""Calls that say what each argument is: at most five are known by their place alone."""

import ast
from collections.abc import Iterable, Iterator
from functools import cache

from tests.stack import ROOT

_MOST = 5
# Foreign ones that take any number of the same thing.
_ANY_NUMBER = {"Table", "add_row", "eval", "send_command"}
# What a function is handed to, with arguments for it: how many of its own it has.
_HANDS_ON = {"partial": 1, "to_thread": 1, "run_in_executor": 2}


@cache
def modules() -> dict[str, ast.Module]:
    paths = (path for folder in ("app", "workers") for path in sorted((ROOT / folder).rglob("*.py")))
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in paths}


def wide_calls(module: ast.Module, any_number: set[str]) -> Iterator[ast.Call]:
    """The calls with too many positional arguments, but those of functions `any_number`."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if len(node.args) - _HANDS_ON.get(name, 0) > _MOST and name not in any_number:
                yield node


def definitions(modules: Iterable[ast.Module]) -> dict[str, bool]:
    """The functions by name, and whether each of that name takes any number of the same thing."""
    is_variadic: dict[str, bool] = {}
    for module in modules:
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                is_variadic[node.name] = node.args.vararg is not None and is_variadic.get(node.name, True)
    return is_variadic


def test_no_call_has_more_than_five_positional_arguments() -> None:
    """Ruff's PLR0917 sees definitions only."""
    everywhere, calls = definitions(modules().values()), []
    for path, module in modules().items():
        is_variadic = everywhere | definitions([module])
        any_number = _ANY_NUMBER | {name for name in is_variadic if is_variadic[name]}
        calls += [f"{path}:{call.lineno} {ast.unparse(call.func)}" for call in wide_calls(module, any_number)]
    assert not calls


def test_a_wide_call_is_seen() -> None:
    sources = ["f(1, 2, 3, 4, 5)", "f(1, 2, 3, 4, 5, a=6)", "partial(f, 1, 2, 3, 4, 5)", "add_row(1, 2, 3, 4, 5, 6)"]
    assert not any([*wide_calls(ast.parse(source), {"add_row"})] for source in sources)
    sources = ["f(1, 2, 3, 4, 5, 6)", "o.f(1, 2, 3, 4, *rest, 6)", "partial(f, 1, 2, 3, 4, 5, 6)"]
    assert all([*wide_calls(ast.parse(source), {"add_row"})] for source in sources)
