"""A batch's input: looked at, and uploaded."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

from app.cli.client import checked
from app.cli.report import err, refuse

_LOOKED_AT = 100  # lines


def endpoint_of(file: Path) -> str:
    """The url of the first line that has one."""
    try:
        with file.open("rb") as lines:
            found = next(filter(None, map(_url, islice(lines, _LOOKED_AT))), None)
    except OSError as exc:
        refuse(f"{file}: {exc.strerror}")
    if found is None:
        refuse(f"{file}: none of the first {_LOOKED_AT} lines is a JSON object with a 'url'; or name --endpoint")
    return found


def _url(raw: bytes) -> str | None:
    try:
        line = json.loads(raw)
    except ValueError:
        return None
    url = line.get("url") if isinstance(line, dict) else None
    return url if isinstance(url, str) else None


def labels(pairs: list[str]) -> dict[str, str] | None:
    """Of `k=v`."""
    for pair in pairs:
        if "=" not in pair:
            refuse(f"--metadata {pair}: has to be K=V")
    return dict(pair.split("=", 1) for pair in pairs) or None


def upload(client: Any, file: Path) -> str:
    """The new file's id. It is read while it is sent."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = TextColumn("uploading"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    try:
        with (
            Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress,
            progress.open(file, "rb") as content,
        ):
            response = client.post("/v1/files", data={"purpose": "batch"}, files={"file": (file.name, content)})
    except OSError as exc:
        refuse(f"{file}: {exc.strerror}")
    return str(checked(response)["id"])
