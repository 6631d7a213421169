"""Imported by each Python process that has this folder in PYTHONPATH: traces what an API process does with a request.

It begins with SIGUSR2, since a traced start would take a minute. The request is one whose bytes have the mark in
XYLEM_WALK_MARK. When the first byte of its answer is written, the functions of ours that were called until the last
write to Redis before are appended to XYLEM_WALK_FILE, a line of JSON.
"""

import json
import os
import signal
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_MARK = os.environ.get("XYLEM_WALK_MARK", "").encode()
_REDIS = "app/store/connection.py"
_HTTP = "app/api/http/direct_writer.py", "app/api/http/uvicorn_protocol.py"  # the latter in older commits
_UVICORN = "uvicorn/protocols/http/httptools_impl.py"


class Trace:
    """The calls since the request's first byte; a resumed coroutine is called again."""

    def __init__(self) -> None:
        self.calls: list[CodeType] | None = None
        self.sent = 0  # calls before the last write to Redis

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call":
            if self.calls is None and code.co_name == "data_received" and _MARK in frame.f_locals.get("data", b""):
                self.calls, self.sent = [], 0
            if self.calls is not None and "/app/" in code.co_filename and "site-packages" not in code.co_filename:
                self.calls.append(code)
            if self.calls is not None and _answers(code):
                self._write(dict.fromkeys(self.calls[: self.sent]))
                self.calls = None
        elif event == "return" and self.calls is not None and code.co_filename.endswith(_REDIS) and _writes(code):
            self.sent = len(self.calls)

    def _write(self, codes: dict[CodeType, None]) -> None:
        rows = []
        for code in codes:
            file = code.co_filename[code.co_filename.rindex("/app/") + 1 :]
            lines = [line for _, _, line in code.co_lines() if line is not None]
            size = max(lines, default=code.co_firstlineno) - code.co_firstlineno + 1
            rows.append((file, code.co_firstlineno, code.co_qualname, size))
        with Path(os.environ["XYLEM_WALK_FILE"]).open("a") as file_of_walks:
            file_of_walks.write(json.dumps(rows) + "\n")


def _answers(code: CodeType) -> bool:
    """Whether it writes to the client: ours, or uvicorn's where an answer doesn't go by ours."""
    return (code.co_filename.endswith(_HTTP) and _writes(code)) or (
        code.co_filename.endswith(_UVICORN) and code.co_name == "send"
    )


def _writes(code: CodeType) -> bool:
    return "_transport" in code.co_names and "write" in code.co_names


if _MARK and sys.orig_argv[-1:] == ["api"]:
    signal.signal(signal.SIGUSR2, lambda *_: sys.setprofile(Trace()))
