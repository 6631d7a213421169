"""The end of a batch as the result of a Celery task: all that is to be known, and as many answers as fit."""

from collections.abc import Iterator
from typing import Any

import orjson

from app.batch.records import Batch
from app.batch.storage import Storage
from app.errors import FileGone

MOST = 2**20  # bytes of lines: a result is a value in Redis


def answers_of(storage: Storage, batch: Batch) -> dict[str, Any]:
    """Lines of the output file, then of the error file, in OpenAI's format. Raises: StorageDown."""
    lines = list(_lines(storage, batch))
    return {
        "id": batch.order.id,
        "status": batch.status,
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "usage": {"prompt_tokens": batch.prompt, "completion_tokens": batch.completion},
        "output_file_id": batch.output,
        "error_file_id": batch.errors_file,
        "errors": [{"code": one.code, "message": one.message, "line": one.line} for one in batch.problems],
        "answers": lines,
        "left_out": max(0, batch.completed + batch.failed - len(lines)),
    }


def _lines(storage: Storage, batch: Batch) -> Iterator[Any]:
    """Whole lines, until the next one would be too much."""
    room = MOST
    for file in (batch.output, batch.errors_file):
        if file is None:
            continue
        try:
            with storage.read(f"files/{file}") as source:
                while raw := source.readline(room + 1):
                    if len(raw) > room:
                        return
                    room -= len(raw)
                    yield orjson.loads(raw)
        except FileGone:  # it has expired, or its client has deleted it
            continue
