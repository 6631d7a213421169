"""A batch client over HTTP."""

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import httpx

from ops.bench.processes import Unavailable

_TIMEOUT_S = 120.0
_BAD = ("failed", "expired", "cancelled")


class Client:
    """All methods block, and raise Unavailable when the API refuses."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=_TIMEOUT_S, trust_env=False)

    def upload(self, path: Path) -> str:
        """Uploads a file as a stream; returns its id."""
        with path.open("rb") as file:
            return str(self._ask("POST", "/v1/files", files={"file": file}, data={"purpose": "batch"})["id"])

    def create(self, file: str, endpoint: str) -> str:
        body = {"input_file_id": file, "endpoint": endpoint, "completion_window": "24h"}
        return str(self._ask("POST", "/v1/batches", json=body)["id"])

    def find(self, batch: str) -> dict[str, Any]:
        return self._ask("GET", f"/v1/batches/{batch}")

    def set_paused(self, batch: str, paused: bool) -> None:
        self._ask("POST", f"/v1/batches/{batch}/{'pause' if paused else 'resume'}")

    def cancel(self, batch: str) -> None:
        self._ask("POST", f"/v1/batches/{batch}/cancel")

    def until(
        self, batch: str, is_so: Callable[[dict[str, Any]], bool], timeout_s: float, every_s: float = 0.1
    ) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while not is_so(record := self.find(batch)):
            if record["status"] in _BAD or time.monotonic() > deadline:
                raise Unavailable(f"the batch is {record['status']} {record['errors']}, {record['request_counts']}")
            time.sleep(every_s)
        return record

    def answers(self, file: str) -> dict[str, dict[str, Any]]:
        """The bodies in an output file, by custom_id."""
        answer = self._http.get(f"/v1/files/{file}/content")
        lines = [json.loads(line) for line in answer.content.splitlines()]
        return {line["custom_id"]: line["response"]["body"] for line in lines}

    def _ask(self, method: str, path: str, **kwargs: Any) -> dict[str, Any]:
        try:
            answer = self._http.request(method, path, **kwargs)
        except httpx.HTTPError as exc:
            raise Unavailable(f"{method} {path}: {exc!r}") from exc
        if not answer.is_success:
            raise Unavailable(f"{method} {path}: status {answer.status_code}: {answer.text[:200]}")
        content: dict[str, Any] = answer.json()
        return content


def write_lines(path: Path, endpoint: str, bodies: Iterable[dict[str, Any]]) -> None:
    """An input file; line i has the custom_id `i`."""
    with path.open("w") as file:
        for i, body in enumerate(bodies):
            file.write(json.dumps({"custom_id": str(i), "method": "POST", "url": endpoint, "body": body}) + "\n")
