"""Tests that are there and that pytest would collect, read from syntax trees: that imports nothing."""

import ast
from functools import cache
from pathlib import Path

_NEVER = frozenset({"skip", "xfail"})


def uncollected(node_id: str, root: Path) -> str:
    """Says why pytest would not run the test of this id, whatever its parameters; "": it would."""
    path, _, name = node_id.partition("::")
    if not (root / path).is_file():
        return "is in no file"
    if not (path.startswith("tests/") and Path(path).name.startswith("test_")):
        return "is in no file of tests"
    marks = _tests(root / path, root).get(name)
    if marks is None:
        return "is gone"
    return f"is marked {', '.join(sorted(marks & _NEVER))}" if marks & _NEVER else ""


@cache
def _tests(path: Path, root: Path) -> dict[str, frozenset[str]]:
    """The marks of a file's tests, by name (`Class::name` in a class), and of those that it imports by a star."""
    tests: dict[str, frozenset[str]] = {}
    body = ast.parse(path.read_text()).body
    everywhere = _module_marks(body)
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                tests |= _one(node, "", everywhere)
            case ast.ClassDef() if node.name.startswith("Test"):
                for inner in node.body:
                    if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                        tests |= _one(inner, f"{node.name}::", everywhere | _marks(node.decorator_list))
            case ast.ImportFrom(module=str(module), names=[ast.alias(name="*")]):
                tests |= _tests(root / f"{module.replace('.', '/')}.py", root)
    return tests


def _one(node: ast.FunctionDef | ast.AsyncFunctionDef, prefix: str, marks: frozenset[str]) -> dict[str, frozenset[str]]:
    return {prefix + node.name: marks | _marks(node.decorator_list)} if node.name.startswith("test_") else {}


def _module_marks(body: list[ast.stmt]) -> frozenset[str]:
    """Marks in `pytestmark`."""
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            return _marks(node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else [node.value])
    return frozenset()


def _marks(decorators: list[ast.expr]) -> frozenset[str]:
    """The names of pytest's marks; `skipif` is none of `_NEVER`, since another machine runs the test."""
    texts = [ast.unparse(one.func if isinstance(one, ast.Call) else one) for one in decorators]
    return frozenset(text.removeprefix("pytest.mark.") for text in texts)
