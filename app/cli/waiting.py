"""Waiting for a batch, with a progress bar."""

import time
from collections.abc import Iterator
from typing import Any

from app.cli.client import checked
from app.cli.report import err

_POLL_S = 0.5
_PATIENCE_S = 60.0  # how long the API may be unreachable
_ENDED = ("completed", "failed", "expired", "cancelled")


def await_end(client: Any, path: str) -> Any:
    """The batch when it has ended. Raises: ApiError, httpx.TransportError, KeyboardInterrupt."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    texts = TextColumn("{task.fields[failed]} failed"), TextColumn("{task.fields[rate]:.0f} tokens/s")
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *texts, TimeRemainingColumn()
    batch: Any = None
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("waiting", total=None, failed=0, rate=0.0)
        began, before = time.monotonic(), None
        for batch in _each(client, path):
            tokens = batch["usage"]["output_tokens"]
            before = tokens if before is None else before
            counts = batch["request_counts"]
            progress.update(
                task,
                description="paused" if batch["paused"] else batch["status"],
                total=counts["total"] or None,
                completed=counts["completed"] + counts["failed"],
                failed=counts["failed"],
                rate=(tokens - before) / max(_POLL_S, time.monotonic() - began),
            )
    return batch


def _each(client: Any, path: str) -> Iterator[Any]:
    """The batch, polled until it has ended."""
    import httpx

    answered_at = time.monotonic()
    while True:
        patient = time.monotonic() - answered_at < _PATIENCE_S
        try:
            response = client.get(path, timeout=10)
        except httpx.TransportError:
            if not patient:
                raise
        else:
            if not (response.is_server_error and patient):
                batch = checked(response)
                answered_at = time.monotonic()
                yield batch
                if batch["status"] in _ENDED:
                    return
        time.sleep(_POLL_S)
