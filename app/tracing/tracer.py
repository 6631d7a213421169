"""Whether requests are traced, and where their spans go."""

from collections.abc import Iterable
from typing import Protocol

from app.errors import SettingsError
from app.messages.trace import TracePlace
from app.tracing.environment import is_on
from app.tracing.span import Span


class Tracer(Protocol):
    """The tracer of one process. Any thread may call it; nothing but `close` waits."""

    def begin(self, traceparent: bytes) -> TracePlace:
        """The place of a new request, sampled or not, as OTEL_TRACES_SAMPLER has it. `traceparent`: the client's."""

    def export(self, place: TracePlace, spans: Iterable[Span]) -> None:
        """Takes ended spans of a sampled trace. What a collector doesn't take in time is dropped."""

    def close(self) -> None:
        """Sends what it has, for a few seconds at most. Blocks."""


def tracer_of_environment() -> Tracer | None:
    """None: nothing is traced. Raises: SettingsError."""
    if not is_on():
        return None
    try:
        from app.tracing.otel import OtelTracer
    except ImportError as exc:
        raise SettingsError(
            "An OTLP endpoint is set (OTEL_EXPORTER_OTLP_ENDPOINT), and OpenTelemetry is not installed here: "
            f"pip install 'xylem-serve[otel]' ({exc})"
        ) from exc
    return OtelTracer()
