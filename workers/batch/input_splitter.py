"""Splits an input file into parts, with similar prompts side by side, and sorts out the invalid lines."""

import codecs
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import IO, Any, NamedTuple

import orjson
from msgspec.structs import replace

from app.batch import paths as batch_paths
from app.batch.fair_share import LINES
from app.batch.input_line import MAX_LINES, Broken, prefix_key, read_line
from app.batch.records import BatchLine, BatchOrder, Part, Problem, Result, decode_line
from app.batch.storage import Storage
from app.errors import RequestError, XylemError
from app.messages.wire import encode

_PART_BYTES = 16 * 2**20
_MOST_BLANK = MAX_LINES  # as many as if one stood behind each line
_MOST = 1000  # characters of an error: it may quote a name of megabytes

Check = Callable[[bytes], str]  # checks a body, and returns its model. Raises: XylemError


Guard = Callable[[int], AbstractContextManager[object]]  # by line. Raises: Broken, for one that is not to be read


class Unusable(Exception):
    """The whole input file can't be used."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(problem.message)


class LinesLeft(NamedTuple):
    """Lines that a batch may have beside others."""

    lines: int
    most: int  # together with them
    whose: str  # limit it is: "Your"

    def exceeded(self, line: int | None = None) -> Unusable:
        """The error of a batch that has more. `line`: the first one too many."""
        words = f"{self.whose} unfinished batches have at most {self.most} lines together."
        return Unusable(Problem("too_many_lines", words, line))


class SplitInput(NamedTuple):
    parts: int
    lines: int
    broken: int
    model: str  # of all its lines


class _Spooled(NamedTuple):
    key: bytes  # input_line.prefix_key
    number: int
    offset: int
    length: int


def split_input(
    storage: Storage,
    order: BatchOrder,
    source: str,
    check: Check,
    max_line: int,
    has_stopped: Callable[[], bool],
    lines_left: LinesLeft | None = None,
    guard: Guard = nullcontext,
) -> SplitInput:
    """Writes the parts of a batch, and the errors of its invalid lines. `source`: the input file's path.

    `lines_left`: None: as many lines as anybody may have. `guard`: each line is read and checked within it.

    Raises: Unusable, FileGone, StorageDown; InterruptedError when `has_stopped`. Memory: one line, and a key for each.
    """
    custom_ids: set[str] = set()
    wrong: list[Result] = []
    good: list[_Spooled] = []
    model, blank = "", 0
    with storage.read(source) as file, tempfile.TemporaryFile() as spool:
        for number, raw in numbered(file, max_line):
            if has_stopped():
                raise InterruptedError
            if not raw.strip():
                blank = _blank(blank, number)
                continue
            if len(good) + len(wrong) >= MAX_LINES:
                raise Unusable(Problem("too_many_lines", f"A batch has at most {MAX_LINES} lines.", number))
            if lines_left is not None and len(good) + len(wrong) >= lines_left.lines:
                raise lines_left.exceeded(number)
            try:
                with guard(number):
                    line, body = _read(raw, number, order, custom_ids, max_line)
                    custom_ids.add(line.custom_id)
                    line_model = check(line.body)
                model = model or line_model
                if line_model != model:  # as at OpenAI; and parts are sent by the room of one model's engines
                    raise RequestError(f"Earlier lines ask for '{model}': a batch is for one model.", param="model")
            except Broken as exc:
                wrong.append(failed(number, exc.custom_id, 400, exc.problem))
                continue
            except XylemError as exc:
                problem = Problem(exc.code, exc.message, number, exc.param)
                wrong.append(failed(number, line.custom_id, exc.status, problem, exc))
                continue
            line_bytes = encode(line)
            good.append(_Spooled(prefix_key(body), number, spool.tell(), len(line_bytes)))
            spool.write(line_bytes)
        if not good and not wrong:
            raise Unusable(Problem("empty_file", "The input file has no line."))
        good.sort()
        parts = list(_parts(good))
        for number, part in enumerate(parts):
            if has_stopped():
                raise InterruptedError
            lines = [_read_back(spool, entry) for entry in part]
            storage.put(batch_paths.part(order.id, number), encode(Part(lines)))
    storage.put(batch_paths.broken(order.id), encode(wrong))
    return SplitInput(len(parts), len(good) + len(wrong), len(wrong), model)


def _parts(good: list[_Spooled]) -> Iterator[list[_Spooled]]:
    """Consecutive lines as parts, bounded by number and bytes: a part is held in memory."""
    part: list[_Spooled] = []
    for entry in good:
        if part and (len(part) == LINES or sum(p.length for p in part) + entry.length > _PART_BYTES):
            yield part
            part = []
        part.append(entry)
    if part:
        yield part


def numbered(file: IO[bytes], max_line: int) -> Iterator[tuple[int, bytes]]:
    """Lines, blank ones too, with their number from 1; too long ones are cut after `max_line` + 1 bytes.

    Skips a byte order mark at the file's beginning.
    """
    if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
        file.seek(0)
    number = 0
    while raw := file.readline(max_line + 1):
        number += 1
        rest = raw
        while len(rest) > max_line and not rest.endswith(b"\n"):
            rest = file.readline(max_line + 1)
        yield number, raw


def _blank(before: int, number: int) -> int:
    """The number of blank lines with this one. Raises: Unusable.

    They are no lines of the batch, but a file may have a million of them for each megabyte.
    """
    if before >= _MOST_BLANK:
        words = f"The input file of a batch has at most {_MOST_BLANK} blank lines."
        raise Unusable(Problem("too_many_blank_lines", words, number))
    return before + 1


def _read(raw: bytes, number: int, order: BatchOrder, ids: set[str], max_line: int) -> tuple[BatchLine, dict[str, Any]]:
    if len(raw) > max_line:
        raise Broken(Problem("line_too_long", f"A line has at most {max_line} bytes.", number))
    return read_line(raw, number, order.endpoint, ids)


def _read_back(spool: IO[bytes], file: _Spooled) -> BatchLine:
    spool.seek(file.offset)
    return decode_line(spool.read(file.length))


def failed(
    number: int, custom_id: str | None, status: int, problem: Problem, exc: XylemError | None = None, request: str = ""
) -> Result:
    """The result of a failed line, with OpenAI's error as its body."""
    problem = replace(problem, message=problem.message[:_MOST], param=problem.param and problem.param[:_MOST])
    kind = "invalid_request_error" if exc is None else exc.type
    error = {"message": problem.message, "type": kind, "param": problem.param, "code": problem.code}
    return Result(number, custom_id, status, request=request, body=orjson.dumps({"error": error}), problem=problem)
