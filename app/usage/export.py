"""Rows of a report as CSV or Parquet."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO, Literal, TextIO

from app.errors import RequestError

Format = Literal["json", "csv", "parquet"]

Pages = Iterable[Sequence[Mapping[str, Any]]]


def write_csv(pages: Pages, columns: Iterable[str], to: TextIO) -> None:
    writer = csv.DictWriter(to, list(columns), lineterminator="\n")
    writer.writeheader()
    for page in pages:
        writer.writerows(_safe(row) for row in page)


def _safe(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Spreadsheets take a text that begins so for a formula, and a client chooses its own x_request_id."""
    return {
        name: f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
        for name, value in row.items()
    }


def write_parquet(pages: Pages, columns: Mapping[str, type], to: BinaryIO) -> None:
    """`columns`: with the type of each. Raises: RequestError if pyarrow isn't installed."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as exc:
        raise RequestError(
            f"Parquet needs pyarrow, which is not installed here: pip install 'xylem-serve[parquet]' ({exc}).",
            param="format",
        ) from exc
    types = {str: pa.string(), int: pa.int64(), float: pa.float64()}
    schema = pa.schema([(name, types[kind]) for name, kind in columns.items()])
    with parquet.ParquetWriter(to, schema) as writer:
        for page in pages:
            writer.write_table(pa.Table.from_pylist([dict(row) for row in page], schema=schema))
