"""Writes the results of all parts of a batch to one output and one error file."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import IO, NamedTuple

import orjson
from msgspec.structs import replace

from app.batch import paths as batch_paths
from app.batch.records import Batch, Problem, Result, decode_part, decode_results
from app.batch.storage import Storage
from app.ids import BatchId, line_id
from workers.batch.input_splitter import failed

# The error of lines that were not executed, by the batch's ending.
_NOT_EXECUTED = {
    "expired": Problem("batch_expired", "This request could not be executed before the completion window expired."),
    "cancelled": Problem("batch_cancelled", "This request was not executed: the batch was cancelled."),
}
_LOST = Problem("internal_error", "This request was not executed.")

# Line ends to some readers of lines, str.splitlines() among them. orjson escapes the others.
_LINE_ENDS = {end.encode(): b"\\u%04x" % ord(end) for end in "\x85\u2028\u2029"}

Done = Callable[[BatchId, int], list[Result]]  # a part's results that are only in Redis
HasLock = Callable[[], bool]  # whether this worker still has the lock to finish the batch


class Sums(NamedTuple):
    not_executed: list[int]  # of `failed`: the numbers of lines that the batch's end came before
    completed: int
    failed: int
    prompt: int  # tokens
    cached: int
    completion: int
    output: int  # bytes of the output file
    errors: int  # bytes of the error file


def write_result_files(storage: Storage, batch: Batch, results_of: Done, has_lock: HasLock) -> Sums:
    """Writes both files, except empty ones. Holds one part in memory.

    Raises: StorageDown; InterruptedError when `has_lock` is False at the end: another worker may have cleaned up the
    parts meanwhile, so existing files stay as they are.
    """
    id_ = batch.order.id
    kinds = ("output", "error")
    paths = [f"files/{batch_paths.file_of(id_, kind)}" for kind in kinds]
    counts, sizes, tokens, not_executed = [0, 0], [0, 0], [0, 0, 0], list[int]()
    unexecuted_codes = {problem.code for problem in _NOT_EXECUTED.values()}
    with ExitStack() as stack:
        files: list[IO[bytes]] = [stack.enter_context(storage.write(path)) for path in paths]
        for stored_result in _results(storage, batch, results_of):
            result = _whole(storage, id_, stored_result)
            to = 0 if result.problem is None else 1
            raw = line_of(id_, result)
            files[to].write(raw)
            counts[to] += 1
            if result.problem is not None and result.problem.code in unexecuted_codes:
                not_executed.append(result.number)
            sizes[to] += len(raw)
            for i, n in enumerate((result.prompt, result.cached, result.completion)):
                tokens[i] += n
        if not has_lock():
            raise InterruptedError
    for path, size in zip(paths, sizes, strict=True):
        if not size:
            storage.delete(path)
    return Sums(not_executed, *counts, *tokens, *sizes)


def _results(storage: Storage, batch: Batch, results_of: Done) -> Iterator[Result]:
    """One for each line of the input."""
    id_ = batch.order.id
    raw_broken = storage.get(batch_paths.broken(id_))
    if raw_broken is not None:
        yield from decode_results(raw_broken)
    for part in range(batch.parts):
        raw_answers = storage.get(batch_paths.answers(id_, part))
        if raw_answers is not None:
            yield from decode_results(raw_answers)
            continue
        results_by_number = {result.number: result for result in results_of(id_, part)}
        yield from results_by_number.values()
        lines = storage.get(batch_paths.part(id_, part))
        for line in decode_part(lines).lines if lines is not None else ():
            if line.number not in results_by_number:
                yield _not_executed(line.number, line.custom_id, batch.ending)


def _whole(storage: Storage, batch: BatchId, result: Result) -> Result:
    if not result.apart:
        return result
    body = storage.get(batch_paths.body(batch, result.request))
    if body is None:
        return _not_executed(result.number, result.custom_id, "")  # its body was deleted; other lines are written
    return replace(result, body=body, apart=False)


def _not_executed(number: int, custom_id: str | None, ending: str) -> Result:
    problem = _NOT_EXECUTED.get(ending, _LOST)
    return failed(number, custom_id, 0, Problem(problem.code, problem.message, number))


def line_of(batch: BatchId, result: Result) -> bytes:
    """A line of the file in OpenAI's format; its error also has the line's number."""
    problem = result.problem
    error = None
    if problem is not None:
        error = {"code": problem.code, "message": problem.message, "param": problem.param, "line": problem.line}
    response = None
    if result.status:
        body = orjson.Fragment(result.body)
        response = {"status_code": result.status, "request_id": result.request, "body": body}
    raw = orjson.dumps(
        {
            "id": line_id(batch, result.number),
            "custom_id": result.custom_id,
            "response": response,
            "error": error,
        },
        option=orjson.OPT_APPEND_NEWLINE,
    )
    for end, escape in _LINE_ENDS.items():
        raw = raw.replace(end, escape)
    return raw
