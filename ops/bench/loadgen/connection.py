"""A connection that asks one request after the other, and times each answer as it arrives.

Streams are not parsed event by event, which would cost more than the server under test: the texts in what one read
brings are counted by a search.
"""

import asyncio
import json
import re
import time
from dataclasses import dataclass, field
from typing import Any, cast

import httptools

_SHOWN = 200  # characters of an error
_END = re.compile(rb"\r?\n\r?\n")  # of an event
# A text that is not empty, with or without a space. It is no part of another text: quotes are escaped there.
_TEXT = re.compile(rb'"(?:content|text)": ?"(?!")')
_WITH_USAGE = re.compile(rb'^data: (\{.*"usage": ?\{.*\})\r?$', re.MULTILINE)
_ERROR = re.compile(rb'^(?:event: error|data: \{"error").*', re.MULTILINE)


@dataclass(slots=True)
class Answer:
    """Times are of `time.perf_counter`, in seconds."""

    start: float
    first: float = 0.0  # its first text
    end: float = 0.0
    tokens: int = 0
    events: int = 0  # that had a text
    prompt: int = 0  # tokens
    cached: int = 0  # of these
    error: str | None = None
    times: list[tuple[float, int]] = field(default_factory=list)  # of each read, and how many texts it brought


def http_request(path: str, host: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json"
    return f"{head}\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content


class Connection(asyncio.Protocol):
    """`stream`: answers are server-sent events."""

    def __init__(self, stream: bool) -> None:
        self._stream = stream
        self._transport: asyncio.Transport
        self._waiting: asyncio.Future[Answer] | None = None
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def send(self, request: bytes) -> "asyncio.Future[Answer]":
        """Sends a whole HTTP request. The earlier answer has to be complete."""
        self._parser = httptools.HttpResponseParser(self)
        self._body, self._usage, self._is_whole = bytearray(), {}, False
        self._waiting = asyncio.get_running_loop().create_future()
        self._answer = Answer(time.perf_counter())
        self._transport.write(request)
        return self._waiting

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._waiting is None or self._waiting.done():
            return
        now = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as exc:
            self._end(now, f"no HTTP: {exc}")
            return
        if self._stream and self._body and self._parser.get_status_code() == 200:
            self._read_events(now)
        if self._is_whole:
            self._end(now, self._problem(now))

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._is_whole = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._waiting is not None and not self._waiting.done():
            self._end(time.perf_counter(), f"the connection was closed: {exc}")

    def _read_events(self, now: float) -> None:
        """Takes the events that are whole."""
        ends = [match.end() for match in _END.finditer(self._body)]
        if not ends:
            return
        events = bytes(self._body[: ends[-1]])
        del self._body[: ends[-1]]
        answer = self._answer
        if texts := len(_TEXT.findall(events)):
            answer.first = answer.first or now
            answer.events += texts
            answer.times.append((now, texts))
        if b'"usage"' in events:
            for event in _WITH_USAGE.findall(events):
                self._usage = json.loads(event).get("usage") or self._usage
        if b"error" in events and (error := _ERROR.search(events)) is not None:
            answer.error = error[0][:_SHOWN].decode(errors="replace")

    def _problem(self, now: float) -> str | None:
        """Reads what is left of a whole answer. None: it is as it should be."""
        status = self._parser.get_status_code()
        if status != 200:
            return f"status {status}: {bytes(self._body[:_SHOWN]).decode(errors='replace')}"
        if not self._stream:
            self._usage = json.loads(self._body).get("usage") or {}
            self._answer.first, self._answer.events = now, 1
        return None if self._answer.events else "a stream without text"

    def _end(self, now: float, error: str | None) -> None:
        answer, usage = self._answer, self._usage
        answer.end = now
        answer.error = answer.error or error
        answer.tokens = usage.get("completion_tokens", answer.events if self._stream else 0)
        answer.prompt = usage.get("prompt_tokens", 0)
        details: dict[str, Any] = usage.get("prompt_tokens_details") or {}
        answer.cached = details.get("cached_tokens") or 0
        if error is not None or not self._parser.should_keep_alive():
            self._transport.close()
            self.closed = True
        assert self._waiting is not None
        self._waiting.set_result(answer)
