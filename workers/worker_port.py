"""A worker's own /live, /ready and /metrics, on XYLEM_WORKER_PORT.

In threads, which answer also while the model is loaded, and when the worker's event loop hangs.
"""

import socket
import time
from collections.abc import Callable, Iterable
from threading import Thread
from typing import TYPE_CHECKING, Any, Protocol
from wsgiref.simple_server import WSGIRequestHandler, make_server

import orjson
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from app.telemetry import logger
from workers.library_metrics import engine_metrics

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

log = logger(__name__)

_STANDS_S = 5.0  # an event loop that has not run for so long hangs; an engine's worker ends itself after XYLEM_STALL_S
_READ_S = 5.0
_STATUS = {200: "200 OK", 404: "404 Not Found", 503: "503 Service Unavailable"}
_JSON = "application/json"


class Registered(Protocol):
    """A worker that has started, as its port asks it. From any thread."""

    def stands_s(self, now: float) -> float:
        """Seconds for which its event loop has not run. `now`: monotonic."""
        ...

    def ready(self) -> tuple[bool, str]:
        """Whether work is sent here; and the state's name."""
        ...

    def metrics(self) -> Iterable[Metric]:
        """Metrics of its own, beside the process's and its libraries'."""
        ...


class _IPv6Server(ThreadingWSGIServer):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = _READ_S

    def log_message(self, *_: Any) -> None:
        """Nothing: each scrape would be a line."""


class WorkerPort(Collector):
    def __init__(self, host: str, port: int) -> None:
        """Listens from now on. `port`: 0: a free one. Raises: OSError."""
        self._worker: Registered | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ipv6 = ":" in host
        server = _IPv6Server if ipv6 else ThreadingWSGIServer
        self._server = make_server(host, port, self._answer, server, _Handler)
        self.at = f"{f'[{host}]' if ipv6 else host}:{self._server.server_port}"
        Thread(target=self._server.serve_forever, name="worker-port", daemon=True).start()

    def loaded(self, worker: Registered) -> None:
        """The worker takes work from now on."""
        self._worker = worker

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def collect(self) -> Iterable[Metric]:
        if self._worker is not None:
            yield from self._worker.metrics()
        yield from engine_metrics()

    def live(self) -> tuple[bool, str]:
        """Whether the worker runs, and in words. While the model is loaded it does: that may take minutes."""
        worker = self._worker
        hangs = worker is not None and worker.stands_s(time.monotonic()) > _STANDS_S
        return not hangs, "hanging" if hangs else "running"

    def ready(self) -> tuple[bool, str]:
        return (False, "loading") if self._worker is None else self._worker.ready()

    def _answer(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> list[bytes]:
        status, kind, body = self._page(environ["PATH_INFO"])
        start_response(_STATUS[status], [("Content-Type", kind), ("Content-Length", str(len(body)))])
        return [body if environ["REQUEST_METHOD"] != "HEAD" else b""]

    def _page(self, path: str) -> tuple[int, str, bytes]:
        if path == "/metrics":
            return 200, CONTENT_TYPE_LATEST, generate_latest(self._registry)
        checks: dict[str, Callable[[], tuple[bool, str]]] = {"/live": self.live, "/ready": self.ready}
        if path not in checks:
            return 404, _JSON, b"{}"
        good, state = checks[path]()
        return 200 if good else 503, _JSON, orjson.dumps({path[1:]: good, "state": state})


def listening(address: str, port: int | None) -> WorkerPort | None:
    """None: the settings name no port. Ends the process if the port can't be had."""
    if port is None:
        return None
    try:
        worker_port = WorkerPort(address, port)
    except OSError as exc:
        log.critical("worker_not_started", reason=f"XYLEM_WORKER_PORT: {address}:{port}: {exc}")
        raise SystemExit(1) from exc
    log.info("worker_port_opened", at=worker_port.at)
    return worker_port
