"""A worker's own /live, /ready and /metrics, on XYLEM_WORKER_PORT.

In threads, which answer also while the model is loaded, and when the engine's event loop hangs.
"""

import socket
import time
from collections.abc import Callable, Iterable
from threading import Thread
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import orjson
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from app.worker_metrics import families, worker_state
from workers.engine.engine_metrics import engine_metrics
from workers.engine.group_member import GroupMember
from workers.engine.hang_watchdog import HangWatchdog
from workers.engine.lease import LeaseKeeper

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

_STANDS_S = 5.0  # an event loop that has not run for so long hangs; after XYLEM_STALL_S the worker ends itself
_READ_S = 5.0
_STATUS = {200: "200 OK", 404: "404 Not Found", 503: "503 Service Unavailable"}
_JSON = "application/json"


class _IPv6Server(ThreadingWSGIServer):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = _READ_S

    def log_message(self, *_: Any) -> None:
        """Nothing: each scrape would be a line."""


class WorkerPort(Collector):
    def __init__(self, host: str, port: int) -> None:
        """Listens from now on. `port`: 0: a free one. Raises: OSError."""
        self._lease: LeaseKeeper | None = None  # set when the worker is registered
        self._watchdog: HangWatchdog | None = None
        self._group: GroupMember | None = None  # set if the worker follows another one's lead
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ipv6 = ":" in host
        server = _IPv6Server if ipv6 else ThreadingWSGIServer
        self._server = make_server(host, port, self._answer, server, _Handler)
        self.at = f"{f'[{host}]' if ipv6 else host}:{self._server.server_port}"
        Thread(target=self._server.serve_forever, name="worker-port", daemon=True).start()

    def loaded(self, lease: LeaseKeeper, watchdog: HangWatchdog) -> None:
        """The worker is registered."""
        self._lease, self._watchdog = lease, watchdog

    def follows(self, group: GroupMember) -> None:
        """The worker is ready when its leader is, and never registered."""
        self._group = group

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def collect(self) -> Iterable[Metric]:
        if self._lease is not None:
            yield from families([(self._lease.worker, self._lease.metrics)])
        yield from engine_metrics()

    def live(self) -> tuple[bool, str]:
        """While the model is loaded it is: that may take minutes."""
        watchdog = self._watchdog
        hangs = watchdog is not None and watchdog.stands_s(time.monotonic()) > _STANDS_S
        return not hangs, "hanging" if hangs else "running"

    def ready(self) -> tuple[bool, str]:
        """Whether requests are placed here, or computed here with the leader; else why not."""
        if self._group is not None:
            leads = self._group.leader.ready
            return leads, "following" if leads else "loading"
        lease = self._lease
        if lease is None:
            return False, "loading"
        return not lease.stays_out, worker_state(lease.state, draining=lease.stays_out)

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
