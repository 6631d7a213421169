"""The Open Inference Protocol over gRPC, in the event loop of the API process."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from weakref import WeakValueDictionary

import grpc
from starlette.types import Message, Scope

from app.api.http import request_trace, x_request_id
from app.api.http.error_responses import log_failure
from app.api.http.incoming import Share
from app.api.kserve.inference import begin, metadata_of, model_of, served_by, server, traced
from app.api.kserve.messages import infer_message, request_of, response_of, short_message
from app.api.kserve.protocol import MESSAGES, SERVICE
from app.api.operations.health import readiness
from app.api.state import ApiState, asking_of
from app.endpoints import LARGE
from app.errors import ModelNotFound, RequestError, RequestTimeout, Saturated, SettingsError, XylemError
from app.ids import KeyId
from app.kserve.answers import text_outputs, whole
from app.kserve.requests import EMPTY_FINAL, check_version
from app.messages.deltas import merge
from app.telemetry import REFUSALS, logger

log = logger(__name__)

_AT_ONCE = 256  # requests of one stream; more of them wait in the stream
_COMING = 16  # messages of one key that are received at once, of up to XYLEM_MAX_BODY; others wait at their clients
_STREAMS = 64  # of one key, open at once: each may have such a message on its way
_WINDOW = 2**16  # bytes that come of a message before it is received
_FINAL = "triton_final_response"
_Code = grpc.StatusCode
_CODES = {
    400: _Code.INVALID_ARGUMENT,
    401: _Code.UNAUTHENTICATED,
    403: _Code.PERMISSION_DENIED,
    404: _Code.NOT_FOUND,
    408: _Code.DEADLINE_EXCEEDED,
    409: _Code.ABORTED,
    413: _Code.RESOURCE_EXHAUSTED,
    429: _Code.RESOURCE_EXHAUSTED,
    499: _Code.CANCELLED,
    502: _Code.UNAVAILABLE,
    503: _Code.UNAVAILABLE,
    504: _Code.DEADLINE_EXCEEDED,
}
METHODS = {
    "ServerLive": "live",
    "ServerReady": "ready",
    "ModelReady": "model_ready",
    "ServerMetadata": "server_metadata",
    "ModelMetadata": "model_metadata",
    "ModelInfer": "infer",
    "ModelStreamInfer": "stream",
}
_OPEN = {"ServerLive", "ServerReady"}  # need no API key


@asynccontextmanager
async def serving(state: ApiState, leaving: asyncio.Event) -> AsyncIterator[None]:
    """Drains once `leaving` is set, beside HTTP: both have the same time. Raises: SettingsError (the port is taken)."""
    service, host, port = Service(state), state.settings.host, state.settings.grpc_port
    options = [
        ("grpc.max_receive_message_length", state.settings.max_body),
        ("grpc.max_send_message_length", -1),
        ("grpc.http2.lookahead_bytes", _WINDOW),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.so_reuseport", 0),
    ]
    grpc_server = grpc.aio.server(options=options)
    grpc_server.add_generic_rpc_handlers((_handlers(service),))
    try:
        bound = grpc_server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except RuntimeError as exc:
        raise SettingsError(f"XYLEM_GRPC_PORT={port}: {exc}") from exc
    await grpc_server.start()
    log.info("grpc_started", port=bound)

    async def drain() -> None:
        await leaving.wait()
        service.take_no_more()
        await grpc_server.stop(state.settings.drain_timeout_s)

    draining = asyncio.create_task(drain())
    try:
        yield
    finally:
        leaving.set()
        await draining


def _handlers(service: "Service") -> Any:
    # Clients send one message. As a stream of one it is received when the key is checked, and not before that.
    methods = {
        name: grpc.stream_unary_rpc_method_handler(
            service.method(name, getattr(service, own)),
            response_serializer=MESSAGES[f"{name}Response"].SerializeToString,
        )
        for name, own in METHODS.items()
        if own != "stream"
    }
    methods["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
        service.method("ModelStreamInfer", service.stream),  # messages come as bytes
        response_serializer=MESSAGES["ModelStreamInferResponse"].SerializeToString,
    )
    return grpc.method_handlers_generic_handler(SERVICE, methods)


class Service:
    """gRPC cancels a method when its client leaves or its deadline passes; that abandons the answer."""

    def __init__(self, state: ApiState) -> None:
        self._state = state
        self._reading: set[asyncio.Task[None]] = set()  # of open streams
        self._open: Counter[KeyId] = Counter()  # streams
        self._coming: WeakValueDictionary[KeyId, asyncio.Semaphore] = WeakValueDictionary()

    def take_no_more(self) -> None:
        """Open streams end with the answers to what they have sent: clients leave them open for hours."""
        for reading in self._reading:
            reading.cancel()

    def method(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """`work` behind the check of the API key, with errors as gRPC's."""

        async def run(messages: AsyncIterator[bytes], context: Any) -> Any:
            scope = _scope(name, context)
            try:
                if self._state.settings.require_keys and name not in _OPEN:
                    await self._state.api_keys.admit(scope)
                if name == "ModelStreamInfer":
                    with self._opened(self._state.api_keys.client(scope).key):
                        return await work(messages, scope, context)
                message = b"" if name in _OPEN else await self._received(messages, scope)
                async with self._admitting(scope, message):
                    is_long = name == "ModelInfer"
                    read = await self._read(message) if is_long else short_message(f"{name}Request", message)
                    return await work(read, scope, context)
            except XylemError as exc:
                await context.abort(_CODES.get(exc.status, _Code.INTERNAL), _refused(exc, scope).message)
            except Exception as exc:
                if isinstance(exc, grpc.aio.AbortError):
                    raise
                log.error("request_broke", **x_request_id.names(scope), exc_info=exc)
                await context.abort(_Code.INTERNAL, XylemError().message)

        return run

    @contextmanager
    def _opened(self, key: KeyId) -> Iterator[None]:
        """Raises: Saturated."""
        if key and self._open[key] >= _STREAMS:
            raise Saturated(f"An API key may have {_STREAMS} open streams. Try again when one is closed.")
        self._open[key] += 1
        try:
            yield
        finally:
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]

    async def _received(self, messages: AsyncIterator[bytes], scope: Scope) -> bytes:
        """The only one. Raises: RequestTimeout, RequestError."""
        key = self._state.api_keys.client(scope).key
        if (room := self._coming.get(key)) is None:
            room = self._coming[key] = asyncio.Semaphore(_COMING)
        try:
            async with asyncio.timeout(self._state.settings.request_timeout_s), room:
                async for message in messages:
                    return message
        except TimeoutError:
            raise RequestTimeout from None
        raise RequestError("The call has no message.")

    @asynccontextmanager
    async def _admitting(self, scope: Scope, raw: bytes) -> AsyncIterator[None]:
        """Admits a request that came whole. Raises, if it is large: Saturated, RateLimited, BudgetUsed, StoreDown."""
        client = self._state.api_keys.client(scope)
        admission, share = self._state.begin_admission(scope), Share(self._state.incoming, client)
        try:
            if len(raw) > LARGE:
                share.grow(len(raw))
                await admission.take()
            yield
        finally:
            share.close()
            await admission.close()

    async def _read(self, raw: bytes) -> Any:
        """Raises: RequestError."""
        return await self._state.off_loop(raw, lambda: infer_message(raw))

    async def live(self, *_: Any) -> Any:
        return MESSAGES["ServerLiveResponse"](live=True)

    async def ready(self, *_: Any) -> Any:
        return MESSAGES["ServerReadyResponse"](ready=(await readiness(self._state))["ready"])

    async def model_ready(self, message: Any, scope: Scope, *_: Any) -> Any:
        try:
            check_version(message.name, message.version)
            ready = await served_by(self._state, await model_of(asking_of(self._state, scope), message.name))
        except ModelNotFound:
            ready = False
        return MESSAGES["ModelReadyResponse"](ready=ready)

    async def server_metadata(self, *_: Any) -> Any:
        return MESSAGES["ServerMetadataResponse"](**server())

    async def model_metadata(self, message: Any, scope: Scope, *_: Any) -> Any:
        metadata = await metadata_of(asking_of(self._state, scope), message.name, message.version)
        return MESSAGES["ModelMetadataResponse"](**metadata)

    async def infer(self, message: Any, scope: Scope, context: Any) -> Any:
        with traced(self._state, scope, scope["path"]):
            request = request_of(message, self._within_s(context))
            async with await begin(self._state, scope, _never, request) as call:
                outputs = await whole(call, request)
        request_trace.end(scope, 200)
        return response_of(request, outputs)

    async def stream(self, messages: AsyncIterator[bytes], scope: Scope, context: Any) -> None:
        """Answers requests side by side; the pieces of each in their order, with its id."""
        room, writing = asyncio.Semaphore(_AT_ONCE), asyncio.Lock()

        async def send(**fields: Any) -> None:
            async with writing:  # gRPC takes one message at a time
                await context.write(MESSAGES["ModelStreamInferResponse"](**fields))

        async def answer(raw: bytes) -> None:
            own, message = {**scope, "headers": [*scope["headers"]]}, None
            x_request_id.identify(own, [])
            try:
                if self._state.settings.require_keys:
                    await self._state.api_keys.admit(own)  # the key may have been revoked since the stream began
                async with self._admitting(own, raw):
                    message = await self._read(raw)
                    await self._stream_one(message, own, self._within_s(context), send)
            except Exception as exc:
                if not isinstance(exc, XylemError):
                    log.error("stream_broke", **x_request_id.names(own), exc_info=exc)
                error = _refused(exc if isinstance(exc, XylemError) else XylemError(), own)
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
            self._reading.add(reading)
            reading.add_done_callback(self._reading.discard)

    def _within_s(self, context: Any) -> float | None:
        """Seconds until the call's deadline, at most those that requests have anyway; None: it has no deadline."""
        remaining_s = context.time_remaining()
        return None if remaining_s is None else min(remaining_s, self._state.settings.request_timeout_s)

    async def _stream_one(self, message: Any, scope: Scope, within_s: float | None, send: Callable[..., Any]) -> None:
        with traced(self._state, scope, scope["path"]):
            request = request_of(message, within_s)
            pieces = request.streams()
            async with await begin(self._state, scope, _never, request, streams=True) as call:
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


def _scope(method: str, context: Any) -> Scope:
    """A scope for the checks of HTTP requests: metadata are headers."""
    metadata = context.invocation_metadata() or ()
    headers = [
        (name.lower().encode(), value if isinstance(value, bytes) else value.encode()) for name, value in metadata
    ]
    scope: Scope = {"type": "http", "method": "POST", "path": f"/{SERVICE}/{method}", "headers": headers}
    x_request_id.identify(scope, [])
    return scope


def _refused(exc: XylemError, scope: Scope) -> XylemError:
    log_failure(exc, scope)
    REFUSALS.labels(exc.code).inc()
    return exc


async def _never() -> Message:
    """The `receive` of a request whose client's leaving cancels it."""
    await asyncio.Event().wait()
    raise AssertionError
