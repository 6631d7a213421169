"""The events of a streamed answer."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx

from app.cli.event_lines import event_lines, event_lines_async
from ops.bench.processes import Unavailable

Event = dict[str, Any]
_DATA, _DONE = "data: ", "[DONE]"


def events(answer: httpx.Response) -> Iterator[Event]:
    """Raises: Unavailable when it is refused, breaks or has no end."""
    if answer.status_code != 200:
        raise Unavailable(f"{answer.url.path}: {answer.status_code} {answer.read()[:200]!r}")
    for line in event_lines(answer):
        if line == _DATA + _DONE:
            return
        if line.startswith(_DATA):
            yield _event(answer, line)
    raise Unavailable(f"{answer.url.path}: the stream broke off")


async def events_async(answer: httpx.Response) -> AsyncIterator[Event]:
    """Raises: Unavailable when it is refused, breaks or has no end."""
    if answer.status_code != 200:
        raise Unavailable(f"{answer.url.path}: {answer.status_code} {(await answer.aread())[:200]!r}")
    async for line in event_lines_async(answer):
        if line == _DATA + _DONE:
            return
        if line.startswith(_DATA):
            yield _event(answer, line)
    raise Unavailable(f"{answer.url.path}: the stream broke off")


def _event(answer: httpx.Response, line: str) -> Event:
    event: Event = json.loads(line.removeprefix(_DATA))
    if "error" in event:
        raise Unavailable(f"{answer.url.path}: {event['error']}")
    return event


def cached_of(usage: Event) -> int:
    """Tokens of the prompt that were cached."""
    return int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
