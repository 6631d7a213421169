"""CPU time of all processes for a request that its key's limits refuse: the worst of each row of the table."""

from collections.abc import Iterable
from typing import NamedTuple

import grpc
import httpx
import psutil

from app.endpoints import COSTS
from ops.bench.load import System
from tests.worst_requests import Request, used_up, worst


class Uncharged(NamedTuple):
    row: str
    kind: str  # of the content
    size: int  # of it, bytes
    answer: str  # a status, or gRPC's
    cpu_s: float


def uncharged(system: System, grpc_port: int, times: int, most: int) -> list[Uncharged]:
    """Measures all requests of all rows, each sent so often; `most`: bytes of the longest body.

    Raises: KeyError: a row has no request. AssertionError: one was not refused.
    """
    pids = [pid for part in system.watch.values() for pid in part]
    rows = []
    with (
        httpx.Client(base_url=system.url, timeout=120) as http,
        grpc.insecure_channel(f"127.0.0.1:{grpc_port}", options=[("grpc.max_send_message_length", -1)]) as channel,
    ):
        for row in COSTS:
            key = used_up(http)  # for a minute
            for request in worst(row, most):
                before = _cpu_s(pids)
                answers = [_refused(http, channel, request, key) for _ in range(times)]
                cpu_s = (_cpu_s(pids) - before) / times
                rows.append(Uncharged(row, request.kind, len(request.content), answers[-1], cpu_s))
    assert {one.row for one in rows} == COSTS.keys()
    return rows


def _refused(http: httpx.Client, channel: grpc.Channel, request: Request, key: dict[str, str]) -> str:
    """The status of the answer. Raises: AssertionError: it was served."""
    if request.is_grpc:
        try:
            channel.unary_unary(request.path)(request.content, timeout=120, metadata=[*key.items()])
        except grpc.RpcError as exc:
            return str(exc.code().name)
        return "OK"  # of a stream, and of methods that make nothing
    answer = http.request(request.method, request.path, content=request.content, headers=key | request.headers)
    assert 400 <= answer.status_code < 500, f"{request.path}: {answer.status_code} {answer.text[:300]}"
    return str(answer.status_code)


def _cpu_s(pids: Iterable[int]) -> float:
    """CPU seconds of the processes and of all that they have started, those that ended included."""
    roots = [psutil.Process(pid) for pid in pids]
    processes = [*roots, *(child for root in roots for child in root.children(recursive=True))]
    return sum(sum(process.cpu_times()[:4]) for process in processes)
