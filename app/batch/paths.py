"""Where things of a batch lie in the storage, while it runs and afterwards."""

import hashlib

from app.ids import BatchId, FileId


def folder(batch: BatchId) -> str:
    return f"batches/{batch}"


def broken(batch: BatchId) -> str:
    """The lines that can't be asked: a list of Result."""
    return f"{folder(batch)}/broken"


def part(batch: BatchId, number: int) -> str:
    """The lines of a Part."""
    return f"{folder(batch)}/in/{number}"


def answers(batch: BatchId, number: int) -> str:
    """Their results: a list of Result."""
    return f"{folder(batch)}/out/{number}"


def body(batch: BatchId, request: str) -> str:
    """One that lies apart from its Result."""
    return f"{folder(batch)}/bodies/{request}"


def file_of(batch: BatchId, kind: str) -> FileId:
    """Its output or error file. All workers give it the same id, so that it is there once though made twice."""
    return FileId(f"file-{hashlib.sha256(f'{batch}/{kind}'.encode()).hexdigest()[:24]}")
