"""Names in the texts and comments exist: a file that was moved and a method that was renamed are mended there, too."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.stack import ROOT

_CODE = re.compile(r"`([^`\n]+)`")
_FILE = re.compile(r"[\w.-]+(?:/[\w.-]+)+\.(?:py|lua|conf|toml)")
_MEMBER = re.compile(r"([A-Z]\w+)\.([a-z_]\w*)(?:\(\))?")
# Of engines and libraries that have classes with names of ours.
FOREIGN = {"BlockStored.lookahead_token_ids", "Tracer.start_span"}


@cache
def texts() -> dict[str, str]:
    """The repository's sources and texts, by path."""
    rooms = [ROOT / room for room in ("app", "docker", "docs", "examples", "ops", "requirements", "tests", "workers")]
    paths = [*ROOT.iterdir(), *(path for room in rooms for path in room.rglob("*"))]
    kinds = (".conf", ".lua", ".md", ".py", ".toml")
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths if path.suffix in kinds}


@cache
def ends_of_paths() -> frozenset[str]:
    """The paths, each without as many of its folders as one likes."""
    parts = [path.split("/") for path in texts()]
    return frozenset("/".join(path[first:]) for path in parts for first in range(len(path)))


@cache
def members(owner: str) -> frozenset[str]:
    """The names of our classes of that name: methods, fields, what is assigned to instances; "^Base" of its bases."""
    names: set[str] = set()
    for text in texts().values():
        if re.search(rf"^ *class {owner}\b", text, re.MULTILINE):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ClassDef) and node.name == owner:
                    names.update(f"^{ast.unparse(base).partition('[')[0].rpartition('.')[2]}" for base in node.bases)
                    names.update(names_in(node))
    return frozenset(names)


def names_in(node: ast.ClassDef) -> Iterator[str]:
    for inner in ast.walk(node):
        match inner:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def may_have(owner: str, name: str) -> bool:
    """Whether the class has it, or a base that is not ours may."""
    own = members(owner)
    return not own or name in own or any(may_have(base[1:], name) for base in own if base.startswith("^"))


def unknown(text: str) -> list[str]:
    return [name for name in _CODE.findall(text) if not is_known(name)]


def is_known(name: str) -> bool:
    if _FILE.fullmatch(name):
        return name in ends_of_paths()
    member = _MEMBER.fullmatch(name)
    return member is None or name in FOREIGN or may_have(member[1], member[2])


def test_names_of_files_and_of_classes_members_in_texts_and_comments_exist() -> None:
    """The changelog names those of once, too."""
    pages = {path: text for path, text in texts().items() if path.endswith((".md", ".py"))}
    del pages["CHANGELOG.md"], pages[Path(__file__).relative_to(ROOT).as_posix()]
    assert len(pages) > 1000
    assert {path: names for path, text in pages.items() if (names := unknown(text))} == {}


def test_a_name_that_the_code_does_not_have_is_found() -> None:
    assert unknown("`Placer.left_out` and `app/store/gone.py`") == ["Placer.left_out", "app/store/gone.py"]
    assert unknown("`Placer.stop`, `store/scripts.py`, `Foreign.method` and `PYTHON.md`") == []
