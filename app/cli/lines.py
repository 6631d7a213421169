"""A batch's input file: its endpoint, its metadata, its upload."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

from app.cli.client import checked
from app.cli.report import err, refuse

_FIRST_LINES = 100


def endpoint_of(file: Path) -> str:
    """The url of the first line that has one."""
    try:
        with file.open("rb") as lines:
            url = next(filter(None, map(_url, islice(lines, _FIRST_LINES))), None)
    except OSError as exc:
        refuse(f"{file}: {exc.strerror}")
    if url is None:
        refuse(f"{file}: none of the first {_FIRST_LINES} lines is a JSON object with a 'url'; or give --endpoint")
    return url


def _url(raw: bytes) -> str | None:
    try:
        line = json.loads(raw)
    except ValueError:
        return None
    url = line.get("url") if isinstance(line, dict) else None
    return url if isinstance(url, str) else None


def check_order(endpoint: str, window: str) -> None:
    """Refuses what no batch may have, before anything is uploaded."""
    from app.batch.input_line import ENDPOINTS
    from app.batch.window import read_window
    from app.errors import RequestError

    if endpoint not in ENDPOINTS:
        refuse(f"a batch can be for {', '.join(ENDPOINTS)}, not for '{endpoint[:100]}'")
    try:
        read_window(window)
    except RequestError as exc:
        refuse(exc.message)


def labels(pairs: list[str]) -> dict[str, str] | None:
    """The metadata that `K=V` arguments give; None without any."""
    for pair in pairs:
        if "=" not in pair:
            refuse(f"--metadata {pair}: has to be K=V")
    return dict(pair.split("=", 1) for pair in pairs) or None


def upload(client: Any, file: Path) -> str:
    """Uploads the file, piece by piece. Returns its id."""
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
