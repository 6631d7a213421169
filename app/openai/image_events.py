"""A picture's events as it is painted, in OpenAI's shape."""

from base64 import b64encode
from collections.abc import Mapping
from typing import Literal

import orjson

from app.dispatch.generation_base import GenerationBase
from app.messages.events import Progress
from app.openai.images import file_format, size, usage
from app.openai.picture_answers import Event, Kind, PictureEvent

_NAMES: Mapping[tuple[Kind, Literal["partial_image", "completed"]], Event] = {
    ("image_generation", "partial_image"): "image_generation.partial_image",
    ("image_generation", "completed"): "image_generation.completed",
    ("image_edit", "partial_image"): "image_edit.partial_image",
    ("image_edit", "completed"): "image_edit.completed",
}


class ImageEvents:
    def __init__(self, call: GenerationBase, kind: Kind) -> None:
        self._call, self._kind = call, kind
        self._previews = [0] * len(call.plan.paintings)
        self._completed: set[int] = set()

    def progress(self, number: int, step: Progress) -> bytes:
        """The event of a picture's step: nothing, unless there is something to be seen."""
        if not step.picture:
            return b""
        index = self._previews[number]
        self._previews[number] += 1
        event = self._event("partial_image", number, step.picture)
        event["partial_image_index"] = index
        return _written(event)

    def completed(self, numbers: "set[int] | frozenset[int]") -> bytes:
        """The events of pictures that are complete by now."""
        new, self._completed = sorted(numbers - self._completed), self._completed | numbers
        return b"".join([self._last(number) for number in new])

    def _last(self, number: int) -> bytes:
        event = self._event("completed", number, self._call.pictures[number])
        event["usage"] = usage(self._call)
        return _written(event)

    def _event(self, what: Literal["partial_image", "completed"], number: int, file: bytes | bytearray) -> PictureEvent:
        painting, prompt = self._call.plan.paintings[number], self._call.plan.revised_prompt
        event: PictureEvent = {
            "type": _NAMES[self._kind, what],
            "b64_json": b64encode(file).decode(),
            "created_at": self._call.created,
            "background": "opaque",
            "quality": "auto",
            "seed": painting.seed,
            "output_format": file_format(painting),
            "size": size(painting),
        }
        if prompt is not None:
            event["revised_prompt"] = prompt
        return event


def _written(event: PictureEvent) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event))
