"""A response's server-sent events, as bytes. Their numbers follow from the log: all readers see the same."""

from collections.abc import Iterable, Mapping, Sequence

from app import json_bytes
from app.errors import XylemError
from app.messages.events import Delta, Done, Event, Failed
from app.openai.logprobs import token_logprob
from app.openai.responses import answer_types as shown
from app.openai.responses.answer_types import CallDeltaKind, EventKind, ItemEventKind, PartEventKind, Status
from app.openai.responses.output import ItemChange, OutputItem
from app.openai.responses.response_object import ResponseObject

# As at OpenAI, a cancelled response ends with no event of its own name: its status says it.
_KINDS: Mapping[Status, EventKind] = {
    "queued": "response.queued",
    "in_progress": "response.in_progress",
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "failed": "response.failed",
    "cancelled": "response.failed",
}


class ResponseEvents:
    """Writes the events, each once and in order."""

    def __init__(self, progress: ResponseObject, after: int = -1) -> None:
        """`after`: the number of the reader's last event; events up to it are not written."""
        self._progress, self._after, self._next = progress, after, 0

    def opening(self) -> bytes:
        """The events before any output."""
        return self._whole("response.created") + self._whole(_KINDS[self._progress.status])

    def write(self, events: Iterable[Event]) -> bytes:
        return b"".join(part for event in events for part in self._parts(event))

    def is_long(self, events: Sequence[Event]) -> bool:
        """Whether `write` takes too long for the event loop: the last event repeats the whole response."""
        return isinstance(events[-1], Done | Failed) and self._progress.is_long

    def error(self, exc: XylemError) -> bytes:
        """The log can't be read any further. The response itself may go on."""
        return self._event(_error(exc, self._number()))

    def _parts(self, event: Event) -> Iterable[bytes]:
        progress = self._progress
        is_queued = not progress.begun
        changes = progress.add(event)
        if isinstance(event, Delta) and is_queued:
            yield self._whole("response.in_progress")
        for change in changes:
            yield from self._change(change)
        if isinstance(event, Done | Failed):
            yield self._whole(_KINDS[progress.status])
            progress.forget()

    def _change(self, change: ItemChange) -> Iterable[bytes]:
        item = change.item
        if change.kind == "begins":
            yield self._item("response.output_item.added", item, item.shown(begun=True))
            if item.kind == "message":
                yield self._part("response.content_part.added", item, {**item.part(), "text": ""})
            elif item.kind == "reasoning":
                yield self._part("response.content_part.added", item, {"type": "reasoning_text", "text": ""})
        elif change.kind == "grows":
            yield from self._piece(change)
        else:
            yield from self._last(item)
            yield self._item("response.output_item.done", item, item.shown())

    def _piece(self, change: ItemChange) -> Iterable[bytes]:
        item = change.item
        if item.kind == "message":
            if change.text or change.logprobs:
                yield self._event(
                    {
                        "type": "response.output_text.delta",
                        "sequence_number": self._number(),
                        "item_id": item.id,
                        "output_index": item.index,
                        "content_index": 0,
                        "delta": change.text,
                        "logprobs": [token_logprob(one) for one in change.logprobs],
                    }
                )
        elif item.kind == "reasoning":
            yield self._event(
                {
                    "type": "response.reasoning_text.delta",
                    "sequence_number": self._number(),
                    "item_id": item.id,
                    "output_index": item.index,
                    "content_index": 0,
                    "delta": change.text,
                }
            )
        elif item.kind == "function_call":
            yield self._call_delta("response.function_call_arguments.delta", item, change.text)

    def _last(self, item: OutputItem) -> Iterable[bytes]:
        if item.kind == "function_call":
            yield self._event(
                {
                    "type": "response.function_call_arguments.done",
                    "sequence_number": self._number(),
                    "item_id": item.id,
                    "output_index": item.index,
                    "arguments": item.text,
                    "name": item.name,
                }
            )
        elif item.kind == "custom_tool_call":  # its text is within JSON, which can be read only when it is complete
            yield self._call_delta("response.custom_tool_call_input.delta", item, item.input)
            yield self._event(
                {
                    "type": "response.custom_tool_call_input.done",
                    "sequence_number": self._number(),
                    "item_id": item.id,
                    "output_index": item.index,
                    "input": item.input,
                }
            )
        elif item.kind == "reasoning":
            reasoning = item.thought()
            yield self._event(
                {
                    "type": "response.reasoning_text.done",
                    "sequence_number": self._number(),
                    "item_id": item.id,
                    "output_index": item.index,
                    "content_index": 0,
                    "text": reasoning["text"],
                }
            )
            yield self._part("response.content_part.done", item, reasoning)
        else:
            part = item.part()
            yield self._event(
                {
                    "type": "response.output_text.done",
                    "sequence_number": self._number(),
                    "item_id": item.id,
                    "output_index": item.index,
                    "content_index": 0,
                    "text": part["text"],
                    "logprobs": part["logprobs"],
                }
            )
            yield self._part("response.content_part.done", item, part)

    def _whole(self, kind: EventKind) -> bytes:
        number, response = self._number(), self._progress.response()
        return self._event({"type": kind, "sequence_number": number, "response": response})

    def _item(self, kind: ItemEventKind, item: OutputItem, as_shown: shown.OutputItem) -> bytes:
        number = self._number()
        return self._event({"type": kind, "sequence_number": number, "output_index": item.index, "item": as_shown})

    def _part(self, kind: PartEventKind, item: OutputItem, part: shown.Part | shown.ReasoningPart) -> bytes:
        return self._event(
            {
                "type": kind,
                "sequence_number": self._number(),
                "item_id": item.id,
                "output_index": item.index,
                "content_index": 0,
                "part": part,
            }
        )

    def _call_delta(self, kind: CallDeltaKind, item: OutputItem, delta: str) -> bytes:
        return self._event(
            {
                "type": kind,
                "sequence_number": self._number(),
                "item_id": item.id,
                "output_index": item.index,
                "delta": delta,
            }
        )

    def _number(self) -> int:
        """The number of the next event."""
        number, self._next = self._next, self._next + 1
        return number

    def _event(self, event: shown.AnyEvent) -> bytes:
        return b"" if event["sequence_number"] <= self._after else _written(event)


def error_alone(exc: XylemError) -> bytes:
    """The only event of a stream without a response."""
    return _written(_error(exc, 0))


def _error(exc: XylemError, number: int) -> shown.ErrorEvent:
    return {
        "type": "error",
        "sequence_number": number,
        "code": exc.code,
        "message": exc.message,
        "param": exc.param,
    }


def _written(event: shown.AnyEvent) -> bytes:
    kind, number = event["type"].encode(), event["sequence_number"]
    return b"event: %b\nid: %d\ndata: %b\n\n" % (kind, number, json_bytes.dumps(event))
