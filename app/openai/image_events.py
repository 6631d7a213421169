"""A picture's events as it is painted, in OpenAI's shape."""

from base64 import b64encode
from typing import Any, Literal

import orjson

from app.dispatch.generation_base import GenerationBase
from app.messages.events import Progress
from app.openai.images import look, revised, usage

Kind = Literal["image_generation", "image_edit"]


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
        return self._event("partial_image", number, step.picture, {"partial_image_index": index})

    def completed(self, numbers: "set[int] | frozenset[int]") -> bytes:
        """The events of pictures that are complete by now."""
        new, self._completed = sorted(numbers - self._completed), self._completed | numbers
        return b"".join(self._event("completed", n, self._call.pictures[n], {"usage": usage(self._call)}) for n in new)

    def _event(self, what: str, number: int, file: bytes | bytearray, more: dict[str, Any]) -> bytes:
        name, painting = f"{self._kind}.{what}", self._call.plan.paintings[number]
        data = {
            "type": name,
            "b64_json": b64encode(file).decode(),
            "created_at": self._call.created,
            "background": "opaque",
            "quality": "auto",
            "seed": painting.seed,
            **look(painting),
            **revised(self._call.plan),
            **more,
        }
        return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(data))
