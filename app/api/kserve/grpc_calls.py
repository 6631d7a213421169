"""The way of each gRPC call: its key is checked, its message received and admitted, its errors become gRPC's."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal, NamedTuple
from weakref import WeakValueDictionary

import grpc
from starlette.types import Scope

from app.api.http import x_request_id
from app.api.http.error_responses import log_failure
from app.api.http.incoming import Share
from app.api.kserve.messages import short_message
from app.api.operations.admin import authorise
from app.api.state import ApiState
from app.endpoints import LARGE
from app.errors import RequestError, RequestTimeout, Saturated, XylemError
from app.ids import KeyId
from app.telemetry import REFUSALS, logger

log = logger(__name__)

_COMING = 16  # messages of one key that are received at once, of up to XYLEM_MAX_BODY; others wait at their clients
_STREAMS = 64  # of one key, open at once: each may have such a message on its way
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
Work = Callable[["Calls", Any, Scope, Any], Awaitable[Any]]


class Method(NamedTuple):
    work: Work  # of its message, or of a stream's bytes; and of the call's scope and gRPC's context
    asks: Any  # the class of its message
    answer: Any
    guard: Literal["open", "key", "admin"] = "key"
    streams: bool = False
    large: bool = False  # its message may have prompts


class Calls:
    """gRPC cancels a method when its client leaves or its deadline passes; that abandons the answer."""

    def __init__(self, state: ApiState) -> None:
        self.state = state
        self.leaving = asyncio.Event()
        self.reading: set[asyncio.Task[None]] = set()  # of open streams
        self._open: Counter[KeyId] = Counter()  # streams
        self._coming: WeakValueDictionary[KeyId, asyncio.Semaphore] = WeakValueDictionary()

    def take_no_more(self) -> None:
        """Open streams end with the answers to what they have sent: clients leave them open for hours."""
        self.leaving.set()
        for reading in self.reading:
            reading.cancel()

    def handled(self, path: str, method: Method) -> Callable[..., Any]:
        """The method's work behind the check of the API key, with errors as gRPC's."""

        async def run(messages: AsyncIterator[bytes], context: Any) -> Any:
            scope = _scope(path, context)
            try:
                await self._check(method, scope)
                if method.streams:
                    with self._opened(self.state.api_keys.client(scope).key):
                        return await method.work(self, messages, scope, context)
                raw = await self._received(messages, scope) if self._reads(method) else b""
                async with self.admitting(scope, raw):
                    read = raw if method.large else short_message(method.asks, raw)
                    return await method.work(self, read, scope, context)
            except XylemError as exc:
                await context.abort(_CODES.get(exc.status, _Code.INTERNAL), refused(exc, scope).message)
            except Exception as exc:
                if isinstance(exc, grpc.aio.AbortError):
                    raise
                log.error("request_broke", **x_request_id.names(scope), exc_info=exc)
                await context.abort(_Code.INTERNAL, XylemError().message)

        return run

    async def _check(self, method: Method, scope: Scope) -> None:
        """Raises: XylemError."""
        if method.guard == "admin":
            await authorise(self.state, scope)
        elif method.guard == "key" and self.state.settings.require_keys:
            await self.state.api_keys.admit(scope)

    def _reads(self, method: Method) -> bool:
        """Whether its message is received: not from anybody, where keys are required."""
        return method.guard != "open" or (bool(method.asks.DESCRIPTOR.fields) and not self.state.settings.require_keys)

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
        key = self.state.api_keys.client(scope).key
        if (room := self._coming.get(key)) is None:
            room = self._coming[key] = asyncio.Semaphore(_COMING)
        try:
            async with asyncio.timeout(self.state.settings.request_timeout_s), room:
                async for message in messages:
                    return message
        except TimeoutError:
            raise RequestTimeout from None
        raise RequestError("The call has no message.")

    @asynccontextmanager
    async def admitting(self, scope: Scope, raw: bytes) -> AsyncIterator[None]:
        """Admits a request that came whole. Raises, if it is large: Saturated, RateLimited, BudgetUsed, StoreDown."""
        client = self.state.api_keys.client(scope)
        admission, share = self.state.begin_admission(scope), Share(self.state.incoming, client)
        try:
            if len(raw) > LARGE:
                share.grow(len(raw))
                await admission.take()
            yield
        finally:
            share.close()
            await admission.close()


def _scope(path: str, context: Any) -> Scope:
    """A scope for the checks of HTTP requests: metadata are headers."""
    metadata = context.invocation_metadata() or ()
    headers = [
        (name.lower().encode(), value if isinstance(value, bytes) else value.encode()) for name, value in metadata
    ]
    scope: Scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
    x_request_id.identify(scope, [])
    return scope


def refused(exc: XylemError, scope: Scope) -> XylemError:
    """The same error, logged and counted."""
    log_failure(exc, scope)
    REFUSALS.labels(exc.code).inc()
    return exc
