"""A response's server-sent events, as bytes. Their numbers follow from the log: all readers see the same."""

from collections.abc import Iterable, Sequence
from typing import Any

from app import json_bytes
from app.errors import XylemError
from app.messages.events import Delta, Done, Event, Failed
from app.openai.logprobs import token_logprob
from app.openai.responses.output import ItemChange, Kind, OutputItem
from app.openai.responses.response_object import ResponseObject

_TEXTS: dict[Kind, str] = {"message": "output_text", "reasoning": "reasoning_text"}


class ResponseEvents:
    """Writes the events, each once and in order."""

    def __init__(self, progress: ResponseObject, after: int = -1) -> None:
        """`after`: the number of the reader's last event; events up to it are not written."""
        self._progress, self._after, self._next = progress, after, 0

    def opening(self) -> bytes:
        """The events before any output."""
        return self._whole("created") + self._whole(self._progress.status)

    def write(self, events: Iterable[Event]) -> bytes:
        return b"".join(part for event in events for part in self._parts(event))

    def is_long(self, events: Sequence[Event]) -> bool:
        """Whether `write` takes too long for the event loop: the last event repeats the whole response."""
        return isinstance(events[-1], Done | Failed) and self._progress.is_long

    def error(self, exc: XylemError) -> bytes:
        """The log can't be read any further. The response itself may go on."""
        return self._event("error", **_error_fields(exc))

    def _parts(self, event: Event) -> Iterable[bytes]:
        progress = self._progress
        is_queued = not progress.begun
        changes = progress.add(event)
        if isinstance(event, Delta) and is_queued:
            yield self._whole("in_progress")
        for change in changes:
            yield from self._change(change)
        if isinstance(event, Done | Failed):
            # As at OpenAI, a cancelled response ends with no event of its own name: its status says it.
            yield self._whole("failed" if isinstance(event, Failed) else progress.status)
            progress.forget()

    def _change(self, change: ItemChange) -> Iterable[bytes]:
        item = change.item
        if change.kind == "begins":
            yield self._event("response.output_item.added", output_index=item.index, item=item.shown(begun=True))
            if item.kind in _TEXTS:
                yield self._of(item, "content_part.added", content_index=0, part=item.part() | {"text": ""})
        elif change.kind == "grows":
            yield from self._piece(change)
        else:
            yield from self._last(item)
            yield self._event("response.output_item.done", output_index=item.index, item=item.shown())

    def _piece(self, change: ItemChange) -> Iterable[bytes]:
        item = change.item
        if item.kind == "message":
            if change.text or change.logprobs:
                logprobs = [token_logprob(one) for one in change.logprobs]
                yield self._of(item, "output_text.delta", content_index=0, delta=change.text, logprobs=logprobs)
        elif item.kind == "reasoning":
            yield self._of(item, "reasoning_text.delta", content_index=0, delta=change.text)
        elif item.kind == "function_call":
            yield self._of(item, "function_call_arguments.delta", delta=change.text)

    def _last(self, item: OutputItem) -> Iterable[bytes]:
        if item.kind == "function_call":
            yield self._of(item, "function_call_arguments.done", arguments=item.text, name=item.name)
        elif item.kind == "custom_tool_call":  # its text is within JSON, which can be read only when it is complete
            yield self._of(item, "custom_tool_call_input.delta", delta=item.input)
            yield self._of(item, "custom_tool_call_input.done", input=item.input)
        else:
            part = item.part()
            fields = {key: part[key] for key in ("text", "logprobs") if key in part}
            yield self._of(item, f"{_TEXTS[item.kind]}.done", content_index=0, **fields)
            yield self._of(item, "content_part.done", content_index=0, part=part)

    def _whole(self, kind: str) -> bytes:
        return self._event(f"response.{kind}", response=self._progress.response())

    def _of(self, item: OutputItem, kind: str, **fields: Any) -> bytes:
        return self._event(f"response.{kind}", item_id=item.id, output_index=item.index, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._next = self._next, self._next + 1
        if number <= self._after:
            return b""
        return _event(kind, number, fields)


def error_alone(exc: XylemError) -> bytes:
    """The only event of a stream without a response."""
    return _event("error", 0, _error_fields(exc))


def _error_fields(exc: XylemError) -> dict[str, Any]:
    return {"code": exc.code, "message": exc.message, "param": exc.param}


def _event(kind: str, number: int, fields: dict[str, Any]) -> bytes:
    data = json_bytes.dumps({"type": kind, "sequence_number": number, **fields})
    return b"event: %b\nid: %d\ndata: %b\n\n" % (kind.encode(), number, data)
