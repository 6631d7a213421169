"""Paths of a batch's files in the storage."""

import hashlib

from app.ids import BatchId, FileId


def folder(batch: BatchId) -> str:
    return f"batches/{batch}"


def broken(batch: BatchId) -> str:
    """The results of invalid lines: a list of Result."""
    return f"{folder(batch)}/broken"


def part(batch: BatchId, number: int) -> str:
    """A Part: its lines."""
    return f"{folder(batch)}/in/{number}"


def answers(batch: BatchId, number: int) -> str:
    """A part's results: a list of Result."""
    return f"{folder(batch)}/out/{number}"


def body(batch: BatchId, request: str) -> str:
    """The body of a Result whose `apart` is set."""
    return f"{folder(batch)}/bodies/{request}"


def file_of(batch: BatchId, kind: str) -> FileId:
    """The id of its output or error file, the same at every worker: written twice, it exists once."""
    return FileId(f"file-{hashlib.sha256(f'{batch}/{kind}'.encode()).hexdigest()[:24]}")
