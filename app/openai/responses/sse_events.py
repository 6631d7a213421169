"""A response's server-sent events, as bytes. Their numbers are the log's, the same for all readers at all times."""

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from app.errors import XylemError
from app.messages import Delta, Done, Event, Failed
from app.openai.responses.response_object import ResponseObject, logprobs_of


class ResponseEvents:
    """Writes them, once each and in order."""

    def __init__(self, progress: ResponseObject, after: int = -1) -> None:
        """`after`: the number of the last one that the reader has; nothing is written of what it has."""
        self._progress, self._after, self._next = progress, after, 0

    def opening(self) -> bytes:
        """Before anything has come."""
        return self._whole("created") + self._whole(self._progress.status)

    def write(self, events: Iterable[Event]) -> bytes:
        return b"".join(part for event in events for part in self._parts(event))

    def is_long(self, events: Sequence[Event]) -> bool:
        """Whether `write` takes too long for the event loop: the last of them says all that was said once more."""
        return self._progress.is_long and isinstance(events[-1], Done | Failed)

    def error(self, exc: XylemError) -> bytes:
        """The log can't be read any further. The response itself may go on."""
        return self._event("error", **_told(exc))

    def _parts(self, event: Event) -> Iterable[bytes]:
        progress = self._progress
        if isinstance(event, Delta):
            if not progress.deltas:
                yield from self._begin()
            progress.add(event)
            if event.text or event.logprobs:
                yield self._part("output_text.delta", delta=event.text, logprobs=logprobs_of(event))
        elif isinstance(event, Done | Failed):
            progress.add(event)
            if isinstance(event, Done) and progress.deltas:
                yield from self._finish()
            # The one that ends a cancelled response has no name of its own, as at OpenAI: its status says it.
            yield self._whole("failed" if isinstance(event, Failed) else progress.status)
            progress.forget()

    def _begin(self) -> Iterable[bytes]:
        progress = self._progress
        if not progress.begun:
            progress.begun = True
            yield self._whole("in_progress")
        yield self._event("response.output_item.added", output_index=0, item=progress.message([]))
        yield self._part("content_part.added", part=progress.part())

    def _finish(self) -> Iterable[bytes]:
        part = self._progress.part()
        yield self._part("output_text.done", text=part["text"], logprobs=part["logprobs"])
        yield self._part("content_part.done", part=part)
        yield self._event("response.output_item.done", output_index=0, item=self._progress.message([part]))

    def _whole(self, kind: str) -> bytes:
        return self._event(f"response.{kind}", response=self._progress.response())

    def _part(self, kind: str, **fields: Any) -> bytes:
        return self._event(f"response.{kind}", item_id=self._progress.item, output_index=0, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._next = self._next, self._next + 1
        if number <= self._after:
            return b""
        return _event(kind, number, fields)


def error_alone(exc: XylemError) -> bytes:
    """There is no response, and nothing else is sent of it."""
    return _event("error", 0, _told(exc))


def _told(exc: XylemError) -> dict[str, Any]:
    return {"code": exc.code, "message": exc.message, "param": exc.param}


def _event(kind: str, number: int, fields: dict[str, Any]) -> bytes:
    data = orjson.dumps({"type": kind, "sequence_number": number, **fields})
    return b"event: %b\nid: %d\ndata: %b\n\n" % (kind.encode(), number, data)
