"""Writes a table row by row: CSV, JSON lines, or Parquet with pyarrow. The file appears whole, or not at all."""

import csv
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from app.cli.batch_run.column import Column, Kind, Row
from app.cli.batch_run.errors import RunError
from app.cli.batch_run.table_input import NO_PYARROW, Table

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS = 1000  # of Parquet that are in memory


def write_table(path: Path, source: Table, more: Sequence[Column], rows: Iterable[Row]) -> None:
    """Writes the rows, each with the columns of `source` and `more`. Raises: RunError."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        _writer(path)(partial, source, more, rows)
        partial.replace(path)
    except OSError as exc:
        raise RunError(f"{path}: {exc.strerror or exc}") from exc
    finally:
        partial.unlink(missing_ok=True)


def check_output(path: Path) -> None:
    """Checks the name, the folder, and what writing needs, before anything is paid for. Raises: RunError."""
    if _writer(path) is _write_parquet:
        _pyarrow()
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise RunError(f"{path}: there is no folder {path.parent} that can be written")


def _writer(path: Path) -> Callable[[Path, Table, Sequence[Column], Iterable[Row]], None]:
    writers = {".csv": _write_csv, ".jsonl": _write_lines, ".parquet": _write_parquet}
    if path.suffix.lower() not in writers:
        raise RunError(f"{path} has to end with {', '.join(writers)}")
    return writers[path.suffix.lower()]


def _write_csv(path: Path, source: Table, more: Sequence[Column], rows: Iterable[Row]) -> None:
    names = [column.name for column in (*source.columns, *more)]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([_cell(row.get(name)) for name in names] for row in rows)


def _cell(value: Any) -> Any:
    return _json(value) if isinstance(value, list | dict | bool) else value


def _write_lines(path: Path, _source: Table, _more: Sequence[Column], rows: Iterable[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{_json(row)}\n" for row in rows)


def _json(value: Any) -> str:
    """JSON, also of what only Parquet has, such as decimals."""
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise RunError(NO_PYARROW) from None
    return pyarrow


def _write_parquet(path: Path, source: Table, more: Sequence[Column], rows: Iterable[Row]) -> None:
    arrow = _pyarrow()
    types = _types(arrow)
    columns = [*(source.columns if source.schema is None else ()), *more]
    schema = arrow.schema([] if source.schema is None else source.schema)
    for column in columns:
        schema = schema.append(arrow.field(column.name, types[column.kind]))
    texts = [column.name for column in columns if column.kind == "json"]
    with arrow.parquet.ParquetWriter(path, schema) as writer:
        for page in _pages(rows):
            part = [{**row, **{name: _text(row, name) for name in texts}} for row in page]
            writer.write_table(arrow.Table.from_pylist(part, schema=schema))


def _types(arrow: Any) -> Mapping[Kind, "pa.DataType"]:
    text = arrow.string()
    return {
        "text": text,
        "integer": arrow.int64(),
        "number": arrow.float64(),
        "boolean": arrow.bool_(),
        "numbers": arrow.list_(arrow.float32()),
        "json": text,
    }


def _text(row: Row, name: str) -> str | None:
    value = row.get(name)
    return None if value is None else _json(value)


def _pages(rows: Iterable[Row]) -> Iterator[list[Row]]:
    source = iter(rows)
    while page := list(islice(source, _ROWS)):
        yield page
