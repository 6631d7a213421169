"""The trace of one request, from its arrival to its end."""

from collections.abc import Mapping

from app.messages.trace import TracePlace
from app.store import clock
from app.tracing.span import Attribute, Span, SpanEvent
from app.tracing.traceparent import new_span_id
from app.tracing.tracer import Tracer


class RequestTrace:
    """Collects what is known of a sampled request, and exports its spans at its end. Times are by Redis' clock."""

    def __init__(self, tracer: Tracer, place: TracePlace, path: str, came: float) -> None:
        """`path`: of its URL. `came`: when it arrived."""
        self._tracer, self._ended = tracer, False
        self._came, self.place, self.path, self.name = came, place, path, f"POST {path}"
        self.body_read = 0.0  # when its body was here; 0: unknown
        self.answered = False  # whether an answer was begun
        # It ends with its answer instead of its HTTP response: an answer that is kept, or a line of a batch.
        self.ends_with_answer = False
        self.status = 0  # of the HTTP response; 0: unknown
        self.error = ""  # the code of the error with which its last answer ended
        if place.sampled:  # others have none of these, which would take a microsecond
            self.attributes: dict[str, Attribute] = {}
            self.spans: list[Span] = []
            self.events: list[SpanEvent] = []

    @classmethod
    def begin(cls, tracer: Tracer | None, traceparent: bytes, path: str) -> "RequestTrace | None":
        """Begins the trace of a request that has just come; None: nothing is traced."""
        return None if tracer is None else cls(tracer, tracer.begin(traceparent), path, clock.now())

    @classmethod
    def adopted(cls, tracer: Tracer | None, place: TracePlace | None, path: str, came: float) -> "RequestTrace | None":
        """The trace of a request whose replica has died before it exported anything; None: it isn't traced."""
        if tracer is None or place is None:
            return None
        trace = cls(tracer, place, path, came)
        trace.answered = trace.ends_with_answer = True
        return trace

    @property
    def sampled(self) -> bool:
        return self.place.sampled

    def read(self) -> None:
        """Its body is here."""
        if self.place.sampled:
            self.body_read = clock.now()

    def understood(self) -> None:
        """An answer begins: the body was checked, and made into tokens."""
        if self.place.sampled and not self.answered:
            now, read = clock.now(), self.body_read or self._came
            if self.body_read:
                self.add("receive", self._came, read)
            self.add("tokenise", read, now)
        self.answered = True

    def add(self, name: str, start: float, end: float) -> None:
        """A stage of the whole request."""
        self.spans.append(Span(name, new_span_id(), self.place.span, start, end))

    def end(self, error: str = "") -> None:
        """Exports it, once. `error`: the code of the one that ended it; "": that of its answer."""
        if self._ended or not self.sampled:
            return
        self._ended, error = True, error or self.error
        self._tracer.export(self.place, [self._own(self.attributes, error), *self.spans])

    def _own(self, of_answer: Mapping[str, Attribute], error: str) -> Span:
        attributes: dict[str, Attribute] = {"url.path": self.path, **of_answer}
        if self.status:
            attributes |= {"http.request.method": "POST", "http.response.status_code": self.status}
        if error:
            attributes["error.type"] = error
        place, now = self.place, clock.now()
        return Span(
            self.name,
            place.span,
            place.parent,
            start=self._came,
            end=now,
            attributes=attributes,
            events=self.events,
            error=error,
            serves=True,
        )
