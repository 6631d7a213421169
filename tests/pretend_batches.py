"""A server of files and batches in the memory of a test: it answers a line with what `answer` says of its body."""

import json
from collections.abc import Callable
from itertools import count
from typing import Any

import httpx
import orjson

Line = dict[str, Any]
# The status and the body of a line's answer; status 0: it is not executed.
Answer = Callable[[Line, int], tuple[int, dict[str, Any]]]


def said(text: str, finish: str = "stop") -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": finish}]}


class PretendBatches:
    """Answers are in another order than the lines, as with a real one."""

    def __init__(self, answer: Answer, *, polls: int = 1) -> None:
        """`answer` gets a line and how often its request came before. `polls`: looks at a batch until it has ended."""
        self._answer, self._polls = answer, polls
        self.files: dict[str, tuple[str, bytes]] = {}
        self.batches: dict[str, dict[str, Any]] = {}
        self.sizes: list[int] = []  # lines of each batch
        self.most_bytes = 200 * 2**20
        self.refuses: str | None = None  # why batches are
        self._tries: dict[bytes, int] = {}
        self._ids = count()
        self.client = httpx.Client(base_url="http://server", transport=httpx.MockTransport(self._handle))
        self.calls = 0
        self.breaks: Callable[[int, httpx.Request], None] = lambda number, request: None

    def _handle(self, request: httpx.Request) -> httpx.Response:
        self.calls += 1
        self.breaks(self.calls, request)
        _, _, what, *rest = request.url.path.split("/")
        if what == "models":
            return httpx.Response(200, json={"id": rest[0], "task": "generate", "price": {"output": 1_000_000.0}})
        if request.method == "POST":
            return self._upload(request) if what == "files" else self._begin(json.loads(request.content))
        if not rest:
            values = self.files if what == "files" else self.batches
            data = [self._file(id_) for id_ in values] if what == "files" else [*self.batches.values()]
            return httpx.Response(200, json={"data": data, "has_more": False, "last_id": None})
        if request.method == "DELETE":
            return httpx.Response(200 if self.files.pop(rest[0], None) else 404, json={})
        if what == "files":
            return httpx.Response(200, content=self.files[rest[0]][1])
        return httpx.Response(200, json=self._look(self.batches[rest[0]]))

    def _file(self, id_: str) -> dict[str, Any]:
        return {"id": id_, "filename": self.files[id_][0]}

    def _upload(self, request: httpx.Request) -> httpx.Response:
        boundary = request.headers["content-type"].partition("boundary=")[2].encode()
        part = next(part for part in request.content.split(b"--" + boundary) if b"filename=" in part)
        head, _, content = part.partition(b"\r\n\r\n")
        content = content.removesuffix(b"\r\n")
        if len(content) > self.most_bytes:
            return httpx.Response(413, json={"error": {"message": "too large"}})
        name = head.partition(b'filename="')[2].partition(b'"')[0].decode()
        return httpx.Response(200, json={"id": self._store(name, content)})

    def _store(self, name: str, content: bytes) -> str:
        id_ = f"file-{next(self._ids)}"
        self.files[id_] = name, content
        return id_

    def _begin(self, order: dict[str, Any]) -> httpx.Response:
        if self.refuses:
            return httpx.Response(400, json={"error": {"message": self.refuses}})
        lines = self.files[order["input_file_id"]][1].splitlines()
        id_ = f"batch-{next(self._ids)}"
        self.sizes.append(len(lines))
        none = dict.fromkeys(("output_file_id", "error_file_id", "errors"))
        counts = {"total": len(lines), "completed": 0, "failed": 0}
        usage = {"input_tokens": 0, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 0}
        state = {"id": id_, "status": "in_progress", "created_at": 0, "request_counts": counts, "usage": usage}
        self.batches[id_] = {**order, **none, **state, "left": self._polls}
        return httpx.Response(200, json=self.batches[id_])

    def _look(self, batch: dict[str, Any]) -> dict[str, Any]:
        batch["left"] -= 1
        if batch["left"] == 0:
            self._end(batch)
        return batch

    def _end(self, batch: dict[str, Any]) -> None:
        outcomes: list[list[bytes]] = [[], []]
        for raw in reversed(self.files[batch["input_file_id"]][1].splitlines()):
            line = orjson.loads(raw)
            tries = self._tries[raw] = self._tries.get(raw, 0) + 1
            status, body = self._answer(line, tries - 1)
            error = None if status == 200 else {"code": "of_test", "message": f"status {status}", "line": 1}
            response = {"status_code": status, "body": body} if status else None
            outcome = {"custom_id": line["custom_id"], "response": response, "error": error}
            outcomes[error is not None].append(orjson.dumps(outcome))
        names = "output_file_id", "error_file_id"
        files = {name: self._store(name, b"\n".join(part)) for name, part in zip(names, outcomes, strict=True) if part}
        batch["request_counts"] |= {"completed": len(outcomes[0]), "failed": len(outcomes[1])}
        batch["usage"] = batch["usage"] | {"input_tokens": 10 * len(outcomes[0]), "output_tokens": len(outcomes[0])}
        batch |= {"status": "completed", **files}
