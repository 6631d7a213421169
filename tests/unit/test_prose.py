"""House rules of prose: how a docstring begins, and what a variable is called."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from symtable import SymbolTable, symtable

import pytest

from tests.stack import ROOT

# A docstring begins with a verb or with the noun that it returns, so with none of these.
NO_BEGINNINGS = frozenset(
    """after also and as at before but by else for from how however if in into it like neither nor not of on once or
    over so than that then there these they this those though through to under until what whatever when where which
    while who whoever whose why with without""".split()
)
PARTICIPLES = frozenset(
    """asked begun borne bought bred broken brought built caught chosen done drawn driven fallen fed felt
    forgotten fought found frozen given gone got grown heard held hidden kept known laid led left lent lost made meant
    met paid ridden risen said seen sent shaken shot shown slept sold sought spent spoken stolen stood struck stuck
    sung swept taken taught thought thrown told torn undone understood woken won worn wound written
    """.split()
)
NOUNS_IN_ED = frozenset({"embed", "feed", "need", "red", "seed", "shed", "speed"})
MESSAGES = ROOT / "app" / "errors.py"  # the docstring of an error is the message that clients read


def wrong(path: Path) -> list[str]:
    text = path.read_text()
    table = symtable(text, str(path), "exec")
    problems = [] if path == MESSAGES else [*beginnings(ast.parse(text))]
    return [f"{path}: {problem}" for problem in (*problems, *participles(table))]


def participle_parameters(path: Path) -> list[str]:
    """The parameters that are bare participles; one that says whether something is so may be one."""
    functions = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    return [
        f"{path}, line {parameter.lineno}: {parameter.arg}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, functions)
        for parameter in parameters(node.args)
        if is_participle(parameter.arg.strip("_")) and not is_bool(parameter.annotation)
    ]


def parameters(arguments: ast.arguments) -> list[ast.arg]:
    of_rest = [rest for rest in (arguments.vararg, arguments.kwarg) if rest is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *of_rest]


def is_bool(annotation: ast.expr | None) -> bool:
    return isinstance(annotation, ast.Name) and annotation.id == "bool"


def beginnings(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        word = (ast.get_docstring(node, clean=False) or "").lstrip(" \n('\"").partition(" ")[0]
        if word.rstrip(".,:;").lower() in NO_BEGINNINGS:
            yield f"a docstring begins with {word}"
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):  # a walk through the expressions would take four times as long
            yield from beginnings(child)


def participles(table: SymbolTable) -> Iterator[str]:
    """The variables of functions that are bare participles; imports are none."""
    if table.get_type() == "function":
        for symbol in table.get_symbols():
            is_variable = symbol.is_assigned() and not (symbol.is_parameter() or symbol.is_namespace())
            if is_variable and not symbol.is_imported() and is_participle(symbol.get_name().strip("_")):
                yield f"{table.get_name()}, line {table.get_lineno()}: {symbol.get_name()}"
    for child in table.get_children():
        yield from participles(child)


def is_participle(word: str) -> bool:
    return word in PARTICIPLES or (word.isalpha() and word.endswith("ed") and word not in NOUNS_IN_ED)


@pytest.mark.parametrize("room", ["app", "workers", "ops", "tests"])
def test_docstrings_begin_with_a_verb_or_a_noun_and_no_variable_is_a_bare_participle(room: str) -> None:
    paths = [*(ROOT / room).rglob("*.py")]
    assert len(paths) > 30
    assert [problem for path in paths for problem in wrong(path)] == []


@pytest.mark.parametrize("room", ["app", "workers"])
def test_no_parameter_is_a_bare_participle(room: str) -> None:
    assert [problem for path in (ROOT / room).rglob("*.py") for problem in participle_parameters(path)] == []


@pytest.mark.parametrize(
    "line",
    [
        "def f(found: int)",
        "def f(*, _kept)",
        "async def f(*named)",
        "def f(**given)",
        "x = lambda made",
        "def f(a, left, /)",
    ],
)
def test_a_parameter_that_is_a_bare_participle_is_found(tmp_path: Path, line: str) -> None:
    (file := tmp_path / "file.py").write_text(f"{line}: ...\n")
    assert len(participle_parameters(file)) == 1
    file.write_text("def f(found: bool, finding: int, found_names: int): ...\n")
    assert participle_parameters(file) == []


@pytest.mark.parametrize(
    "line", ['"""Of those."""', "found = 1", "for _kept in x: ...", "if (made := 1): ...", "[named for named in x]"]
)
def test_a_docstring_or_a_variable_that_breaks_the_rules_is_found(tmp_path: Path, line: str) -> None:
    (file := tmp_path / "file.py").write_text(f"def function() -> None:\n    {line}\n")
    assert len(wrong(file)) == 1


def test_each_rule_that_is_broken_has_the_reason_beside_it() -> None:
    paths = [path for room in ("app", "workers", "ops", "tests") for path in (ROOT / room).rglob("*.py")]
    comments = [line for path in paths for line in path.read_text().splitlines() if re.search("# noqa[:]", line)]
    assert len(comments) > 50
    assert [line for line in comments if not re.search(r"# noqa[:] [A-Z]+[0-9]+(, [A-Z]+[0-9]+)* \(.+\)$", line)] == []


def test_the_product_has_the_formatters_layout_only() -> None:
    paths = [path for room in ("app", "workers") for path in (ROOT / room).rglob("*.py")]
    assert len(paths) > 500
    assert [str(path) for path in paths if re.search(r"# (fmt: *(skip|off)|yapf:)", path.read_text())] == []
