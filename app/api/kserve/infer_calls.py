"""ModelInfer and ModelStreamInfer: whole answers, and streams of requests that are answered side by side."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.types import Message, Scope

from app.api.http import request_trace, x_request_id
from app.api.kserve.grpc_calls import Calls, refused
from app.api.kserve.inference import begin, traced
from app.api.kserve.messages import infer_message, request_of, response_of
from app.api.kserve.protocol import MESSAGES
from app.errors import XylemError
from app.kserve.answers import text_outputs, whole
from app.kserve.requests import EMPTY_FINAL
from app.messages.deltas import merge
from app.telemetry import logger

log = logger(__name__)

_AT_ONCE = 256  # requests of one stream; more of them wait in the stream
_FINAL = "triton_final_response"


async def infer(calls: Calls, raw: bytes, scope: Scope, context: Any) -> Any:
    message = await _read(calls, raw)
    with traced(calls.state, scope, scope["path"]):
        request = request_of(message, _within_s(calls, context))
        async with await begin(calls.state, scope, _never, request) as call:
            outputs = await whole(call, request)
    request_trace.end(scope, 200)
    return response_of(request, outputs)


async def stream(calls: Calls, messages: AsyncIterator[bytes], scope: Scope, context: Any) -> None:
    """Answers requests side by side; the pieces of each in their order, with its id."""
    room, writing = asyncio.Semaphore(_AT_ONCE), asyncio.Lock()

    async def send(**fields: Any) -> None:
        async with writing:  # gRPC takes one message at a time
            await context.write(MESSAGES["ModelStreamInferResponse"](**fields))

    async def answer(raw: bytes) -> None:
        own, message = {**scope, "headers": [*scope["headers"]]}, None
        x_request_id.identify(own, [])
        try:
            if calls.state.settings.require_keys:
                await calls.state.api_keys.admit(own)  # the key may have been revoked since the stream began
            async with calls.admitting(own, raw):
                message = await _read(calls, raw)
                await _answer_one(calls, message, own, _within_s(calls, context), send)
        except Exception as exc:
            if not isinstance(exc, XylemError):
                log.error("stream_broke", **x_request_id.names(own), exc_info=exc)
            error = refused(exc if isinstance(exc, XylemError) else XylemError(), own)
            names = {} if message is None else {"id": message.id, "model_name": message.model_name}
            await send(error_message=error.message, infer_response=MESSAGES["ModelInferResponse"](**names))
        finally:
            room.release()

    async def read(tasks: asyncio.TaskGroup) -> None:
        async for raw in messages:
            await room.acquire()
            tasks.create_task(answer(raw))

    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(read(tasks))
        calls.reading.add(reading)
        reading.add_done_callback(calls.reading.discard)


async def _answer_one(
    calls: Calls, message: Any, scope: Scope, within_s: float | None, send: Callable[..., Any]
) -> None:
    with traced(calls.state, scope, scope["path"]):
        request = request_of(message, within_s)
        pieces = request.streams()
        async with await begin(calls.state, scope, _never, request, streams=True) as call:
            if not pieces:
                last = response_of(request, await whole(call, request))
                last.parameters[_FINAL].bool_param = True
                await send(infer_response=last)
            while pieces and (deltas := await call.deltas()):
                for _choice, d in merge(deltas):  # several, if the client is behind
                    call.count(d)
                    await send(infer_response=response_of(request, text_outputs(request, d)))
    if pieces and request.parameters.get(EMPTY_FINAL):
        end = response_of(request, [])
        end.parameters[_FINAL].bool_param = True
        await send(infer_response=end)
    request_trace.end(scope, 200)


async def _read(calls: Calls, raw: bytes) -> Any:
    """Raises: RequestError."""
    return await calls.state.off_loop(raw, lambda: infer_message(raw))


def _within_s(calls: Calls, context: Any) -> float | None:
    """Seconds until the call's deadline, at most those that requests have anyway; None: it has no deadline."""
    remaining_s = context.time_remaining()
    return None if remaining_s is None else min(remaining_s, calls.state.settings.request_timeout_s)


async def _never() -> Message:
    """The `receive` of a request whose client's leaving cancels it."""
    await asyncio.Event().wait()
    raise AssertionError
