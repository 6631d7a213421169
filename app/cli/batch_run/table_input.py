"""Tables that are read row by row: CSV, JSON lines, texts by lines, and Parquet with pyarrow."""

import csv
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from xxhash import xxh3_128

from app.cli.batch_run.column import Column, Kind, Row, both, kind_of
from app.cli.batch_run.errors import RunError

if TYPE_CHECKING:
    import pyarrow as pa

TEXT = "text"  # the column of a file of texts
_CELL = 2**26  # characters of a cell of CSV
_PIECE = 2**20  # bytes
_ROWS = 1000  # of Parquet that are in memory
NO_PYARROW = "Parquet needs pyarrow: pip install 'xylem-serve[parquet]'"


def table_of(path: Path) -> "Table":
    """Chooses by the file's suffix. Raises: RunError."""
    kinds: dict[str, type[Table]] = {".csv": Csv, ".jsonl": JsonLines, ".txt": Texts, ".parquet": Parquet}
    if path.suffix.lower() not in kinds:
        raise RunError(f"{path} has to end with {', '.join(kinds)}")
    return kinds[path.suffix.lower()](path)


class Table:
    """A file of rows. It is read anew each time, and never whole."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> Iterator[Row]:
        """Raises: RunError."""
        try:
            yield from self._rows()
        except OSError as exc:
            raise RunError(f"{self.path}: {exc.strerror}") from exc
        except UnicodeDecodeError as exc:
            raise RunError(f"{self.path} is no text in UTF-8: {exc.reason}") from exc

    @cached_property
    def columns(self) -> list[Column]:
        """Raises: RunError."""
        kinds: dict[str, Kind | None] = {}
        for row in self.rows():
            for name, value in row.items():
                kinds[name] = both(kinds.get(name), kind_of(value))
        return [Column(name, kind or "text") for name, kind in kinds.items()]

    @cached_property
    def schema(self) -> "pa.Schema | None":
        """Parquet's own; None: `columns` has all that is known."""
        return None

    def digest(self) -> str:
        """Tells whether it is another file than before. Raises: RunError."""
        content = xxh3_128()
        try:
            with self.path.open("rb") as file:
                while piece := file.read(_PIECE):
                    content.update(piece)
        except OSError as exc:
            raise RunError(f"{self.path}: {exc.strerror}") from exc
        return content.hexdigest()

    def _rows(self) -> Iterator[Row]:
        raise NotImplementedError


class Texts(Table):
    @cached_property
    def columns(self) -> list[Column]:
        return [Column(TEXT, "text")]

    def _rows(self) -> Iterator[Row]:
        with self.path.open(encoding="utf-8-sig") as lines:
            for line in lines:
                yield {TEXT: line.rstrip("\n")}


class Csv(Table):
    """The first line names the columns; all values are texts."""

    @cached_property
    def columns(self) -> list[Column]:
        try:
            with self.path.open(encoding="utf-8-sig", newline="") as file:
                names = csv.DictReader(file).fieldnames or ()
        except (OSError, UnicodeDecodeError, csv.Error) as exc:
            raise RunError(f"{self.path}: {exc}") from exc
        if len(set(names)) < len(names):
            raise RunError(f"{self.path}: two columns have the same name")
        return [Column(name, "text") for name in names]

    def _rows(self) -> Iterator[Row]:
        csv.field_size_limit(_CELL)
        with self.path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            try:
                for row in reader:
                    if None in row or None in row.values():
                        raise RunError(f"{self.path}, line {reader.line_num}: it has not as many cells as the first")
                    yield row
            except csv.Error as exc:
                raise RunError(f"{self.path}, line {reader.line_num}: {exc}") from exc


class JsonLines(Table):
    """An object in each line; blank lines are none."""

    def _rows(self) -> Iterator[Row]:
        with self.path.open(encoding="utf-8-sig", newline="\n") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    row = orjson.loads(line)
                except ValueError as exc:
                    raise RunError(f"{self.path}, line {number}: no JSON: {exc}") from exc
                if not isinstance(row, dict):
                    raise RunError(f"{self.path}, line {number}: no JSON object")
                yield row


class Parquet(Table):
    @cached_property
    def columns(self) -> list[Column]:
        names = [] if self.schema is None else self.schema.names
        return [Column(name, "json") for name in names]  # their types are in the schema

    @cached_property
    def schema(self) -> "pa.Schema | None":
        with self._opened() as file:
            return file.schema_arrow

    def _rows(self) -> Iterator[Row]:
        with self._opened() as file:
            for batch in file.iter_batches(_ROWS):
                yield from batch.to_pylist()

    def _opened(self) -> Any:
        try:
            import pyarrow as pa
            from pyarrow import parquet
        except ImportError:
            raise RunError(NO_PYARROW) from None
        try:
            return parquet.ParquetFile(self.path)
        except OSError as exc:
            raise RunError(f"{self.path}: {exc.strerror or exc}") from exc
        except pa.ArrowException as exc:
            raise RunError(f"{self.path}: {exc}") from exc
