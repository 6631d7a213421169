"""A request's trace, from its header `traceparent` on. It stands in the scope, where handlers and log lines find it.

No response has a header of it: W3C's `traceresponse` is a draft, and clients know their own.
"""

from collections.abc import Container

from starlette.types import Message, Scope, Send

from app.api.http.origin import Headers
from app.messages.trace import TracePlace
from app.tracing.request_trace import RequestTrace
from app.tracing.tracer import Tracer

_IN_SCOPE = "xylem.trace"


def begin(tracer: Tracer | None, paths: Container[str], scope: Scope, headers: Headers) -> None:
    """Begins a request's trace, if it is a POST to one of `paths` and `tracer` is not None."""
    if tracer is not None and scope["method"] == "POST" and scope["path"] in paths:
        scope[_IN_SCOPE] = RequestTrace.begin(tracer, headers.get(b"traceparent", b""), scope["path"])


def begin_at(tracer: Tracer | None, route: str, scope: Scope) -> None:
    """`begin`, once a route with parameters is known, under its path; unless `tracer` is None."""
    if tracer is not None:
        traceparent = dict(scope["headers"]).get(b"traceparent", b"")
        scope[_IN_SCOPE] = RequestTrace.begin(tracer, traceparent, route)


def trace_of(scope: Scope) -> RequestTrace | None:
    """None: the request isn't traced."""
    trace: RequestTrace | None = scope.get(_IN_SCOPE)
    return trace


def place_of(scope: Scope) -> TracePlace | None:
    """Its place, for the replica that continues it."""
    trace = trace_of(scope)
    return None if trace is None else trace.place


def body_read(scope: Scope) -> None:
    if (trace := trace_of(scope)) is not None:
        trace.read()


def end(scope: Scope, status: int = 0, error: str = "") -> None:
    """The response is over; 0: its status is unknown, or noted already. `error`: the code of the error that it is."""
    trace = trace_of(scope)
    if trace is None:
        return
    trace.status = status or trace.status
    if not trace.ends_with_answer:
        trace.end(error)


def noting(scope: Scope, send: Send) -> Send:
    """`send` that notes the response's status."""
    trace = trace_of(scope)
    if trace is None or not trace.sampled:
        return send

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            trace.status = message["status"]
        await send(message)

    return sending
