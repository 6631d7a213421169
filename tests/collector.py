"""A real OTLP collector, rotel, over gRPC and HTTP; what it passes on is read here."""

import gzip
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import rotel
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.stack import connects, free_port, stop, wait_until


@dataclass(frozen=True)
class Seen:
    """A span as the collector passed it on."""

    name: str
    trace: str
    id: str
    parent: str
    start: int  # ns
    end: int
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    error: str  # "": it has no such status
    service: str


@dataclass
class Collector:
    grpc: int  # its ports
    http: int
    raw: list[bytes] = field(default_factory=list)

    def environment(self, protocol: str = "grpc") -> dict[str, str]:
        """The environment with which a process exports to it, at once."""
        port = self.grpc if protocol == "grpc" else self.http
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }

    @property
    def spans(self) -> list[Seen]:
        return [span for raw in list(self.raw) for span in _read(raw)]

    def of(self, trace: str) -> list[Seen]:
        return [span for span in self.spans if span.trace == trace]

    def trace(self, trace: str, root: str | None = None, timeout_s: float = 30, attempts: int = 0) -> list[Seen]:
        """Its spans, once its request's own is here, which ends last. `root`: of which name.

        A trace of many spans may come in two parts, the second one first: then `attempts` says how many it has.
        """

        def whole() -> list[Seen]:
            spans = self.of(trace)
            has_root = any(s.name == (root or s.name) and "url.path" in s.attributes for s in spans)
            return spans if has_root and sum(s.name == "attempt" for s in spans) >= attempts else []

        return list(wait_until(whole, f"the trace {trace} is here", timeout_s))


@contextmanager
def collector(directory: Path) -> Iterator[Collector]:
    agent = Collector(free_port(), free_port())

    class Sink(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            agent.raw.append(gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    sink = ThreadingHTTPServer(("127.0.0.1", 0), Sink)
    threading.Thread(target=sink.serve_forever, daemon=True).start()
    command = [
        str(Path(rotel.__file__).parent / "rotel-agent"), "start", "--exporter", "otlp", "--disable-batching",
        "--otlp-grpc-endpoint", f"127.0.0.1:{agent.grpc}", "--otlp-http-endpoint", f"127.0.0.1:{agent.http}",
        "--otlp-exporter-endpoint", f"http://127.0.0.1:{sink.server_port}", "--otlp-exporter-protocol", "http",
    ]  # fmt: skip
    with (directory / "collector.log").open("wb") as log:
        proc = subprocess.Popen(command, stdout=log, stderr=log, env=dict(os.environ))
    try:
        wait_until(lambda: connects(agent.grpc) and connects(agent.http), "the collector listens")
        yield agent
    finally:
        stop(proc)
        sink.shutdown()
        sink.server_close()


def _read(raw: bytes) -> Iterator[Seen]:
    for of_resource in ExportTraceServiceRequest.FromString(raw).resource_spans:
        service = _attributes(of_resource.resource.attributes).get("service.name", "")
        for span in (span for scope in of_resource.scope_spans for span in scope.spans):
            yield Seen(
                span.name,
                span.trace_id.hex(),
                span.span_id.hex(),
                span.parent_span_id.hex(),
                span.start_time_unix_nano,
                span.end_time_unix_nano,
                _attributes(span.attributes),
                [(event.name, _attributes(event.attributes)) for event in span.events],
                span.status.message if span.status.code == 2 else "",
                service,
            )


def _attributes(given: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in given}
