"""OpenTelemetry's SDK: its sampler, its exporters, its queue, each set by its own variables.

Its spans are made whole, at the end: `Tracer.start_span` and `end` take ten times as long for each, can't be told the
span's id, and would be called while tokens come.
"""

from collections.abc import Iterable
from threading import Thread

from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace import set_span_in_context as within

from app.messages import TracePlace
from app.tracing.environment import protocol
from app.tracing.span import Span, SpanEvent
from app.tracing.traceparent import new_span_id, new_trace_id, read

_CLOSE_S = 3.0  # a collector that hangs would keep the process for half a minute
_SCOPE = InstrumentationScope("xylem")
_FLAGS = {True: TraceFlags(TraceFlags.SAMPLED), False: TraceFlags(TraceFlags.DEFAULT)}
# Samplers know who asked by the trace's id and by this flag: a caller's own context would cost three microseconds.
_CALLERS = {
    flag: within(NonRecordingSpan(SpanContext(1, 1, is_remote=True, trace_flags=flags)), Context())
    for flag, flags in _FLAGS.items()
}
_NOBODY = Context()
_OK = Status(StatusCode.UNSET)


class OtelTracer:
    """Implements `app.tracing.tracer.Tracer`."""

    def __init__(self) -> None:
        """Raises: SettingsError."""
        ours = Resource.create().merge(Resource({SERVICE_NAME: "xylem"}))
        self._resource = ours.merge(OTELResourceDetector().detect())  # OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES
        self._sampler = TracerProvider(shutdown_on_exit=False).sampler  # by OTEL_TRACES_SAMPLER and its argument
        self._processor = BatchSpanProcessor(_exporter())

    def begin(self, traceparent: bytes) -> TracePlace:
        caller = read(traceparent)
        if caller is None:
            trace, parent, context = new_trace_id(), "", _NOBODY
        else:
            trace, parent, context = caller.trace, caller.span, _CALLERS[caller.sampled]
        decided = self._sampler.should_sample(context, int(trace, 16), "request", SpanKind.SERVER)
        return TracePlace(trace, new_span_id(), parent, decided.decision is Decision.RECORD_AND_SAMPLE)

    def export(self, place: TracePlace, spans: Iterable[Span]) -> None:
        trace = int(place.trace, 16)
        for span in spans:
            own = SpanContext(trace, int(span.id, 16), is_remote=False, trace_flags=_FLAGS[True])
            parent = None
            if span.parent:
                remote = span.parent == place.parent
                parent = SpanContext(trace, int(span.parent, 16), is_remote=remote, trace_flags=_FLAGS[True])
            self._processor.on_end(
                ReadableSpan(
                    span.name,
                    own,
                    parent,
                    self._resource,
                    span.attributes,
                    [_event(event) for event in span.events],
                    kind=SpanKind.SERVER if span.serves else SpanKind.INTERNAL,
                    status=Status(StatusCode.ERROR, span.error) if span.error else _OK,
                    start_time=_ns(span.start),
                    end_time=_ns(max(span.start, span.end)),
                    instrumentation_scope=_SCOPE,
                )
            )

    def close(self) -> None:
        ending = Thread(target=self._processor.shutdown, daemon=True)
        ending.start()
        ending.join(_CLOSE_S)


def _exporter() -> SpanExporter:
    """With all that its own variables say. Raises: SettingsError."""
    if protocol() == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc

        return OverGrpc()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp

    return OverHttp()


def _event(event: SpanEvent) -> Event:
    return Event(event.name, event.attributes, _ns(event.at))


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
