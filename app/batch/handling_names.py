"""Names of what batch workers handle, for `Handling`."""

from app.ids import BatchId


def of_batch(batch: BatchId, status: str) -> str:
    """Its step at that status."""
    return f"batch:{batch}:{status}"


def of_part(batch: BatchId, part: int) -> str:
    return f"part:{batch}:{part}"


def of_line(batch: BatchId, line: int) -> str:
    return f"line:{batch}:{line}"
