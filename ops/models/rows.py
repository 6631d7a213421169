"""Results of a run so far, a file for each model, so that one that was broken off can go on."""

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from ops.models.pictures import Seen
from ops.models.trial import Row

FOLDER = Path(".xylem/matrix")
T = TypeVar("T", Row, Seen)


def kept(row: Row | Seen) -> None:
    path = _path(type(row), row.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(row))


def rows(names: Iterable[str], of: type[T]) -> list[T]:
    """The rows of these names that are there."""
    paths = [_path(of, name) for name in names]
    return [msgspec.json.decode(path.read_bytes(), type=of) for path in paths if path.exists()]


def forgotten(names: Iterable[str], of: type[Row | Seen]) -> None:
    for name in names:
        _path(of, name).unlink(missing_ok=True)


def _path(of: type[Row | Seen], name: str) -> Path:
    return FOLDER / of.__name__.lower() / f"{name}.json"
