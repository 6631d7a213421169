"""Answers of pipelines: a chat's, or pictures; whole or streamed."""

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope

from app.api.http.sse import Sse
from app.api.openai.conductor import Conductor
from app.api.openai.sse_response import EventStream
from app.api.state import ApiState
from app.dispatch.asking import Asking
from app.dispatch.models.pipeline_named import PipelineNamed
from app.endpoint_registry import CHAT
from app.errors import RequestError
from app.openai.answer_types import ChatCompletionChunk, StageDelta, StageOutput
from app.openai.chat import writer
from app.openai.schemas import ChatRequest


async def chat(
    state: ApiState, asking: Asking, pipeline_request: PipelineNamed, raw: bytes, scope: Scope, receive: Receive
) -> Response:
    """Raises: XylemError."""
    chat_request: ChatRequest = pipeline_request.body
    if chat_request.kept or asking.goes_on:
        param = "store" if chat_request.kept else "Idempotency-Key"
        raise RequestError("An answer of a pipeline is not kept: it can be neither stored nor resumed.", param=param)
    conductor = Conductor(state, asking, pipeline_request, CHAT.row.prefix, scope, receive=receive)
    if chat_request.stream:
        return _ChatStream(conductor, raw)
    body, call = await conductor.chat(raw)
    with conductor.in_last():
        async with call:
            answer = await writer(call, body).whole()
    if conductor.shown:
        answer["stages"] = conductor.shown
    return Response(await call.made(orjson.dumps, answer), headers=call.headers(), media_type="application/json")


class _ChatStream(EventStream):
    """A stream in which what a stage makes comes in chunks of its own, as soon as it is there."""

    def __init__(self, conductor: Conductor, raw: bytes) -> None:
        self.status_code, self.background = 200, None
        self._conductor, self._raw = conductor, raw

    async def _answer(self, sse: Sse, receive: Receive) -> None:
        conductor = self._conductor
        sse.headers = conductor.headers

        async def show(chunk: StageOutput | StageDelta) -> None:
            await sse.start()
            await sse.write(b"data: %b\n\n" % orjson.dumps(_chunk(conductor, chunk)))

        body, self._call = await conductor.chat(self._raw, show)
        self._writer = writer(self._call, body)
        if not sse.started:
            sse.headers = self._call.headers
        with conductor.in_last():
            await self._run(sse, receive)


def _chunk(conductor: Conductor, chunk: StageOutput | StageDelta) -> ChatCompletionChunk:
    """A stage's chunk. Its choice says nothing: many clients look at the first one of every chunk."""
    return {
        "id": conductor.id,
        "object": "chat.completion.chunk",
        "created": conductor.created,
        "model": conductor.name,
        "choices": [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}],
        "stage": chunk,
    }
