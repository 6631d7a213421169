"""Files and batches of the server, as a run needs them: calls that are repeated while the server is away."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import IO, Any

from app.cli.batch_run.errors import RunStopped
from app.cli.client import ApiError, checked, reason

_PATIENCE_S = 60.0  # how long the server may be away
_PAUSE_S = 1.0
_PAGE = 100  # batches in a list
_FILES = 10_000
LABEL = "xylem_run"
ENDED = ("completed", "failed", "expired", "cancelled")


class BatchService:
    def __init__(self, client: Any, patience_s: float = _PATIENCE_S) -> None:
        """`client`: of httpx."""
        self._client, self._patience_s = client, patience_s

    def model(self, name: str) -> dict[str, Any]:
        """Its card. Raises: ApiError; httpx.TransportError at once: it is the first question."""
        card: dict[str, Any] = checked(self._client.get(f"/v1/models/{name}", timeout=30))
        return card

    def submit(self, label: str, content: IO[bytes], order: dict[str, Any], before: float) -> str:
        """Uploads a part and begins its batch, whose id it returns; no second one is made after a failure.

        `label`: the part's alone. `before`: when the run began, seconds since the epoch. Raises: ApiError, RunStopped.
        """
        name = f"{label.replace('/', '-')}.jsonl"

        def upload() -> Any:
            content.seek(0)
            return self._client.post("/v1/files", data={"purpose": "batch"}, files={"file": (name, content)})

        file = self._asked(upload)["id"]
        order = order | {"input_file_id": file, "metadata": {LABEL: label}}

        tries = count()

        def create() -> Any:
            if next(tries) and (batch := self.submitted(label, before)):  # the answer to an earlier try was lost
                return self._client.get(f"/v1/batches/{batch}", timeout=30)
            return self._client.post("/v1/batches", json=order, timeout=60)

        try:
            return str(self._asked(create)["id"])
        except ApiError:
            self.delete(file)
            raise

    def submitted(self, label: str, before: float) -> str | None:
        """The id of the batch with that label, if there is one. Raises: ApiError, RunStopped."""
        after = ""
        while True:
            params = {"limit": _PAGE} | ({"after": after} if after else {})
            page = self._asked(partial(self._client.get, "/v1/batches", params=params, timeout=30))
            for batch in page["data"]:
                if (batch["metadata"] or {}).get(LABEL) == label:
                    return str(batch["id"])
            if not page["has_more"] or page["data"][-1]["created_at"] < before - 3600:
                return None
            after = page["last_id"]

    def drop_uploads(self, label: str) -> None:
        """Deletes what was uploaded for a part that has no batch. Raises: ApiError, RunStopped."""
        name = f"{label.replace('/', '-')}.jsonl"
        params = {"purpose": "batch", "limit": _FILES}
        for file in self._asked(lambda: self._client.get("/v1/files", params=params, timeout=60))["data"]:
            if file["filename"] == name:
                self.delete(file["id"])

    def batch(self, id_: str) -> dict[str, Any]:
        """Raises: ApiError, RunStopped."""
        return self._asked(lambda: self._client.get(f"/v1/batches/{id_}", timeout=30))

    def lines(self, file: str) -> Iterator[str]:
        """The lines of its content. Raises: ApiError, httpx.TransportError."""
        with self._client.stream("GET", f"/v1/files/{file}/content") as response:
            if response.is_error:
                response.read()
                raise ApiError(reason(response), response.status_code)
            yield from response.iter_lines()

    def delete(self, file: str | None) -> None:
        """Deletes a file, if it is there."""
        if file is not None:
            self._asked(lambda: self._client.delete(f"/v1/files/{file}", timeout=60), fine=(404,))

    def tokens(self, body: dict[str, Any]) -> int:
        """The tokens of a prompt or conversation. Raises: ApiError, RunStopped."""
        return int(self._asked(lambda: self._client.post("/tokenize", json=body, timeout=60))["count"])

    def ended_batches(self) -> list[dict[str, Any]]:
        """The newest that completed. Raises: ApiError, RunStopped."""
        page = self._asked(lambda: self._client.get("/v1/batches", params={"limit": _PAGE}, timeout=30))
        return [batch for batch in page["data"] if batch["status"] == "completed"]

    def answer(self, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request, by engines that are idle. Raises: ApiError, RunStopped."""
        return self._asked(lambda: self._client.post(endpoint, json=body))

    def patiently(self, work: Callable[[], Any]) -> Any:
        """Repeats it while the connection breaks. Raises: RunStopped, and what it raises."""
        import httpx

        until = time.monotonic() + self._patience_s
        while True:
            try:
                return work()
            except httpx.TransportError as exc:
                if time.monotonic() > until:
                    raise RunStopped(f"the server does not answer: {exc}") from exc
            time.sleep(_PAUSE_S)

    def _asked(self, call: Callable[[], Any], fine: tuple[int, ...] = ()) -> dict[str, Any]:
        """The JSON of an answer; of statuses in `fine` too. Raises: ApiError, RunStopped."""
        until = time.monotonic() + self._patience_s
        while True:
            response = self.patiently(call)
            wait_s = float(response.headers.get("retry-after", _PAUSE_S))
            is_later = response.status_code == 429 or response.is_server_error
            if is_later and time.monotonic() + wait_s < until:  # not for the next day of a budget
                time.sleep(wait_s)
                continue
            answer: dict[str, Any] = response.json() if response.status_code in fine else checked(response)
            return answer
