"""The ends of the logs of `xylem up`'s processes, for operators: no prompts and no keys are in them."""

import asyncio
from pathlib import Path

from fastapi import APIRouter
from typing_extensions import TypedDict

from app.api.operations.admin import Admin
from app.errors import RequestNotFound

router = APIRouter(prefix="/admin/logs", tags=["fleet"])
_MOST = 64 * 2**10  # bytes that are shown


class LogFile(TypedDict, closed=True):
    name: str  # the process's
    bytes: int
    changed: float  # seconds since the epoch


class LogFiles(TypedDict, closed=True):
    data: list[LogFile]  # empty: nobody has told this process where logs are


class LogEnd(TypedDict, closed=True):
    name: str
    lines: list[str]
    whole: bool  # nothing came before them


@router.get("")
async def list_logs(state: Admin) -> LogFiles:
    """Lists the processes that `xylem up` has started here, by their logs (`XYLEM_LOGS`)."""
    return {"data": await asyncio.to_thread(lambda: [_described(file) for file in _files(state.settings.logs)])}


@router.get("/{process}")
async def show_log(state: Admin, process: str) -> LogEnd:
    """Shows the last lines of one process's log, at most 64 KiB."""
    return await asyncio.to_thread(_end, state.settings.logs, process)


def _files(folder: Path | None) -> list[Path]:
    return sorted(folder.glob("*.log")) if folder is not None else []


def _described(file: Path) -> LogFile:
    about = file.stat()
    return {"name": file.stem, "bytes": about.st_size, "changed": round(about.st_mtime, 1)}


def _end(folder: Path | None, process: str) -> LogEnd:
    """Raises: RequestNotFound."""
    file = next((file for file in _files(folder) if file.stem == process), None)
    if file is None:
        raise RequestNotFound(f"There is no log of a process '{process[:100]}' here.")
    with file.open("rb") as log:
        size = log.seek(0, 2)
        log.seek(max(0, size - _MOST))
        lines = log.read(_MOST).decode(errors="replace").splitlines()
    whole = size <= _MOST
    return {"name": process, "lines": lines if whole else lines[1:], "whole": whole}  # the first is cut in two
