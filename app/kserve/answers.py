"""Answers: as tensors, and as the events of a streamed one."""

import asyncio
from array import array
from collections.abc import Sequence

import orjson

from app.dispatch.generation_base import GenerationBase
from app.kserve.answer_types import GeneratedText
from app.kserve.kinds import Kind
from app.kserve.requests import VERSION, InferRequest
from app.kserve.tensors import PICTURE, Tensor
from app.messages.deltas import merge
from app.messages.events import Delta
from app.openai.classify import best_label
from app.openai.encoding import EncodingWriter
from app.openai.images import painted_files
from app.openai.score import scores
from app.openai.vector_forms import floats


def text_outputs(request: InferRequest, d: Delta) -> list[Tensor]:
    """`finish_reason` only where it is known."""
    tensors = [Tensor("text_output", "BYTES", (1,), [d.text])]
    if d.finish is not None:
        tensors.append(Tensor("finish_reason", "BYTES", (1,), [d.finish]))
    return _wanted(request, tensors)


async def whole(call: GenerationBase, request: InferRequest) -> list[Tensor]:
    """The outputs of an answer that has been sent. Raises: the error that ended it."""
    kind = request.kind(call.model.task)
    if kind in ("text", "chat"):
        ((_choice, d),) = merge(await call.whole())
        return text_outputs(request, d)
    if kind == "image":
        files = await painted_files(call)
        return _wanted(request, [Tensor(PICTURE, "BYTES", (len(files),), files)])
    await call.whole()
    rows = EncodingWriter(call).raw()
    return _wanted(request, await asyncio.to_thread(_of_vectors, kind, rows, request, call.model.labels))


def _of_vectors(kind: Kind, rows: Sequence[bytes], request: InferRequest, labels: Sequence[str]) -> list[Tensor]:
    if kind == "score":
        (first_count,) = (len(one.values) for one in request.inputs if one.name == "text_1")
        numbers = scores([floats(row) for row in rows], first_count)
        return [Tensor("scores", "FP32", (len(numbers),), array("f", numbers))]
    matrix = Tensor(
        "embeddings" if kind == "embed" else "probs",
        "FP32",
        (len(rows), len(rows[0]) // 4),
        array("f", b"".join(rows)),
    )
    if kind == "embed":
        return [matrix]
    names = [best_label(floats(row).tolist(), labels) or "" for row in rows]
    return [Tensor("labels", "BYTES", (len(names),), names), matrix]


def _wanted(request: InferRequest, outputs: list[Tensor]) -> list[Tensor]:
    return [one for one in outputs if not request.outputs or one.name in request.outputs]


class GenerateWriter:
    """Writes an answer of the generate extension, whole or as server-sent events."""

    def __init__(self, call: GenerationBase, request: InferRequest) -> None:
        self._call = call
        self._request = request

    async def whole(self) -> GeneratedText:
        ((_choice, d),) = merge(await self._call.whole())
        return self._body(d)

    def opening(self, _choices: int, /) -> bytes:
        return b""

    def delta(self, _choice: int, d: Delta, /) -> bytes:
        return b"data: %b\n\n" % orjson.dumps(self._body(d))

    async def settle(self) -> None:
        """Nothing is to be done at the end."""

    def last(self) -> bytes:
        return b""

    def _body(self, d: Delta) -> GeneratedText:
        id_, model = self._request.id, self._request.model
        body: GeneratedText = {"id": id_, "model_name": model, "model_version": VERSION, "text_output": d.text}
        if not id_:
            del body["id"]
        if d.finish is not None:
            body["finish_reason"] = d.finish
        return body
