"""Cuts the lines of a run into files that a batch may have: by their number, and by their bytes."""

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

from app.cli.batch_run.errors import RunError


class PartFile(NamedTuple):
    first: int  # row, from 1
    last: int
    lines: int
    content: IO[bytes]  # at its beginning


def part_files(
    lines: Iterable[tuple[int, bytes]], folder: Path, most_lines: int, most_bytes: int
) -> Iterator[PartFile]:
    """Files of one part after the other, each on the disk until the next one is asked for.

    `lines`: with their rows. Raises: RunError for a line that no file may have.
    """
    source = iter(lines)
    line = next(source, None)
    while line is not None:
        with tempfile.TemporaryFile(dir=folder) as content:
            first, count, size = line[0], 0, 0
            while line is not None and count < most_lines and size + len(line[1]) <= most_bytes:
                content.write(line[1])
                last, count, size = line[0], count + 1, size + len(line[1])
                line = next(source, None)
            if not count:
                raise RunError(f"row {first}: its request has more bytes than a file may have, {most_bytes}")
            content.seek(0)
            yield PartFile(first, last, count, content)
