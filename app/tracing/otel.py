"""OpenTelemetry's SDK: its sampler, its exporters, its queue, each set by its own variables.

Its spans are made whole, at the end: `Tracer.start_span` can't be told the span's id, asks the sampler about each, and
would be called while tokens come.
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

from app.messages.trace import TracePlace
from app.tracing.environment import protocol
from app.tracing.span import Span, SpanEvent
from app.tracing.traceparent import new_span_id, new_trace_id, read

_CLOSE_S = 3.0  # a collector that hangs would keep the process for half a minute
_SCOPE = InstrumentationScope("xylem")
_FLAGS = {True: TraceFlags(TraceFlags.SAMPLED), False: TraceFlags(TraceFlags.DEFAULT)}
_NOBODY = Context()
# How samplers describe themselves that do as the caller did. They needn't be asked about it, which takes 5 µs.
_FOLLOWS = "remoteParentSampled:AlwaysOnSampler,remoteParentNotSampled:AlwaysOffSampler"
_OK = Status(StatusCode.UNSET)


class OtelTracer:
    """Implements `app.tracing.tracer.Tracer`."""

    def __init__(self) -> None:
        """Raises: SettingsError."""
        ours = Resource.create().merge(Resource({SERVICE_NAME: "xylem"}))
        self._resource = ours.merge(OTELResourceDetector().detect())  # OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES
        self._sampler = TracerProvider(shutdown_on_exit=False).sampler  # by OTEL_TRACES_SAMPLER and its argument
        self._follows = _FOLLOWS in self._sampler.get_description()
        self._processor = BatchSpanProcessor(_exporter())

    def begin(self, traceparent: bytes) -> TracePlace:
        caller = read(traceparent)
        if caller is None:
            trace = new_trace_id()
            return TracePlace(trace, new_span_id(), "", self._samples(trace, _NOBODY))
        trace, parent, is_sampled = caller.trace, caller.span, caller.sampled
        if not self._follows:
            context = SpanContext(int(trace, 16), int(parent, 16), is_remote=True, trace_flags=_FLAGS[is_sampled])
            is_sampled = self._samples(trace, within(NonRecordingSpan(context), _NOBODY))
        return TracePlace(trace, new_span_id(), parent, is_sampled)

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
                    events=[_event(event) for event in span.events],
                    kind=SpanKind.SERVER if span.serves else SpanKind.INTERNAL,
                    status=Status(StatusCode.ERROR, span.error) if span.error else _OK,
                    start_time=_ns(span.start),
                    end_time=_ns(max(span.start, span.end)),
                    instrumentation_scope=_SCOPE,
                )
            )

    def _samples(self, trace: str, caller: Context) -> bool:
        result = self._sampler.should_sample(caller, int(trace, 16), "request", SpanKind.SERVER)
        return result.decision is Decision.RECORD_AND_SAMPLE

    def close(self) -> None:
        ending = Thread(target=self._processor.shutdown, daemon=True)
        ending.start()
        ending.join(_CLOSE_S)


def _exporter() -> SpanExporter:
    """The exporter, with all that its own variables say. Raises: SettingsError."""
    if protocol() == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc

        return OverGrpc()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp

    return OverHttp()


def _event(event: SpanEvent) -> Event:
    return Event(event.name, event.attributes, _ns(event.at))


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
