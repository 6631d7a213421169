"""What a run has found so far, a file for each architecture, so that one that was broken off can go on."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from ops.models.trial import Row

FOLDER = Path(".xylem/matrix")


def kept(row: Row) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    _path(row.name).write_bytes(msgspec.json.encode(row))


def rows(names: Iterable[str]) -> list[Row]:
    """Those that are there."""
    return [msgspec.json.decode(_path(name).read_bytes(), type=Row) for name in names if _path(name).exists()]


def forgotten(names: Iterable[str]) -> None:
    for name in names:
        _path(name).unlink(missing_ok=True)


def _path(name: str) -> Path:
    return FOLDER / f"{name}.json"
