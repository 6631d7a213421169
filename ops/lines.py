"""`make lines [BEFORE=commit]`: lines of Python by folder, without blank lines, comments and docstrings.

A table, and one line of JSON.
"""

import argparse
import ast
import io
import json
import subprocess
import tokenize
from collections import Counter
from pathlib import Path

from rich.console import Console

from ops.bench.older import tree
from ops.bench.parts import table
from tests.stack import ROOT

_ROOMS = ("app", "workers", "ops", "tests")
_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(prog="make lines")
    options.add_argument("--before", help="a commit that is counted, too")
    commit = options.parse_args().before
    now, before = by_folder(ROOT), Counter[str]()
    if commit:
        with tree(ROOT / ".xylem" / "lines-before", commit) as root:
            before = by_folder(root)
    rows = table("Lines of code", "folder", *(["before"] if commit else []), "now", left=("folder",))
    for folder in sorted(now | before):
        rows.add_row(folder, *([str(before[folder])] if commit else []), str(now[folder]))
    Console(width=None if Console().is_terminal else 160).print(rows)
    figures = {"lines": now.total()} | ({"lines_before": before.total()} if commit else {})
    print(json.dumps(figures))


def by_folder(root: Path) -> Counter[str]:
    """Lines of code, by the first two folders."""
    command = ["git", "ls-files", *(f"{room}/*.py" for room in _ROOMS)]
    names = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.split()
    lines: Counter[str] = Counter()
    for name in names:
        lines["/".join(name.split("/")[:2]) if name.count("/") > 1 else name.split("/")[0]] += code(
            (root / name).read_text()
        )
    return lines


def code(source: str) -> int:
    """Lines that have more than a comment or a docstring."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node
        ):
            first = node.body[0]
            docstrings.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


if __name__ == "__main__":
    main()
