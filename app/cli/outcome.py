"""A batch's status and results."""

import sys
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from app.cli.client import ApiError, reason
from app.cli.report import err, refuse

_SHOWN_PROBLEMS = 10
_TIMES = (
    "created",
    "in_progress",
    "finalizing",
    "completed",
    "failed",
    "expired",
    "cancelling",
    "cancelled",
    "expires",
)


def report(batch: Any, to: Console) -> None:
    counts, usage = batch["request_counts"], batch["usage"]
    progress = f"{counts['completed']} of {counts['total']} lines done, {counts['failed']} failed"
    tokens = f"{usage['input_tokens']} + {usage['output_tokens']} tokens"
    note = " (paused)" if batch["paused"] else ""
    to.print(f"{batch['id']}  {batch['status']}{note}: {progress}; {tokens}", markup=False, soft_wrap=True)
    for name in _TIMES:
        if at := batch.get(f"{name}_at"):
            to.print(f"  {name.replace('_', ' '):12} {datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S}")
    problems = (batch["errors"] or {}).get("data", [])
    for problem in problems[:_SHOWN_PROBLEMS]:
        where = f"line {problem['line']}: " if problem["line"] else ""
        to.print(f"  {where}{problem['message']}", style="red", markup=False, soft_wrap=True)
    if len(problems) > _SHOWN_PROBLEMS:
        to.print(f"  and {len(problems) - _SHOWN_PROBLEMS} more", style="red")


def save(client: Any, batch: Any, output: Path | None, errors: Path | None, *, to_stdout: bool) -> None:
    """Writes the answers, and the errors of failed lines: files of before have nothing of others afterwards.

    Without a path for the errors, prints only their number.
    """
    answers, failures = batch["output_file_id"], batch["error_file_id"]
    if not (answers or failures):
        refuse(f"{batch['id']} is {batch['status']} and has no results", code=1)
    if answers and (output or to_stdout):
        _write(client, answers, output)
    elif not answers:
        err.print("no line was answered")
    for path, there in ((output, answers), (errors, failures)):
        if path and not there and path.exists():
            path.write_bytes(b"")
    if failures and errors:
        _write(client, failures, errors)
        err.print(f"{batch['request_counts']['failed']} lines failed: {errors} says why", markup=False, soft_wrap=True)
    elif failures:
        hint = f"; see them with: xylem batch results {batch['id']} --errors PATH"
        err.print(f"{batch['request_counts']['failed']} lines failed{hint}", markup=False, soft_wrap=True)


def _write(client: Any, file: str, path: Path | None) -> None:
    """None: to stdout."""
    try:
        with (
            path.open("wb") if path else nullcontext(sys.stdout.buffer) as target,
            client.stream("GET", f"/v1/files/{file}/content") as response,
        ):
            if response.is_error:
                response.read()
                raise ApiError(reason(response))
            for piece in response.iter_bytes():
                target.write(piece)
    except OSError as exc:
        refuse(f"{path or 'stdout'}: {exc.strerror}", code=1)
