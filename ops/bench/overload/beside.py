"""Another tenant's stream beside the worst requests of the table and the largest bodies.

`python -m ops.bench.overload.beside URL GRPC_PORT SECONDS BYTES` is the eight clients that send them.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count, cycle
from pathlib import Path
from typing import NamedTuple

import grpc
import httpx
from redis import Redis

from app.endpoints import COSTS
from ops.bench.load import System
from ops.bench.overload.largest import CONTEXT, bodies
from ops.bench.processes import process
from tests.worst_requests import ADMIN, Request, used_up, worst

_CLIENTS = 8
_WATCHED = "watched"  # a model of its own, so that only the API is measured, and not waiting for an engine
_ENGINE = {
    "engine": "mock", "max_model_len": CONTEXT,
    "args": {"step_ms": 20.0, "step_ms_per_sequence": 0, "total_blocks": 32_768, "prefill_tokens_per_s": float("inf")},
}  # fmt: skip
POOLS = {"decode-pool-a": {"model": "mock", **_ENGINE}, "watched-pool": {"model": _WATCHED, **_ENGINE}}
_SERVER_ERRORS = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE}


class Pauses(NamedTuple):
    """The longest between two pieces of the stream, in seconds, of one run."""

    without: float
    beside: float


def _key(http: httpx.Client, tenant: str) -> dict[str, str]:
    """The header of a key without limits, of a tenant of its own."""
    http.put(f"/admin/tenants/{tenant}", json={}, headers=ADMIN).raise_for_status()
    response = http.post("/admin/keys", json={"name": tenant, "tenant": tenant}, headers=ADMIN).raise_for_status()
    return {"x-api-key": response.json()["key"]}


def _requests(url: str, seconds: float, most: int) -> Iterator[tuple[Request, dict[str, str]]]:
    """All once, with a key each, those of the table between the largest; and again until the time is over."""
    end = time.monotonic() + seconds
    with httpx.Client(base_url=url, timeout=120) as http:
        open_key, refused_key = _key(http, f"sender-{time.time_ns()}"), used_up(http)
    largest = cycle(bodies(most))
    for turn in count():
        for row in COSTS:
            yield next(largest), open_key
            for request in worst(row, most):
                yield request, refused_key
            if turn and time.monotonic() > end:
                return


async def send(url: str, grpc_port: int, seconds: float, most: int) -> None:
    """Raises: SystemExit: something was answered with a server's error."""
    requests = _requests(url, seconds, most)

    async def client() -> None:
        limit = [("grpc.max_send_message_length", -1)]
        async with (
            httpx.AsyncClient(base_url=url, timeout=120) as http,
            grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}", options=limit) as channel,
        ):
            for request, key in requests:
                if fault := await (_call(channel, request, key) if request.is_grpc else _ask(http, request, key)):
                    raise SystemExit(f"{request.method} {request.path}: {fault}")

    async with asyncio.TaskGroup() as group:
        for _ in range(_CLIENTS):
            group.create_task(client())


async def _ask(http: httpx.AsyncClient, request: Request, key: dict[str, str]) -> str:
    """The server's error, "" if there was none."""
    try:
        answer = await http.request(
            request.method, request.path, content=request.content, headers=key | request.headers
        )
    except httpx.WriteError:  # refused for its length: the server closed the connection
        return ""
    if request.path == "/v1/files" and answer.status_code == 200:
        await http.delete(f"{request.path}/{answer.json()['id']}", headers=key)
    return f"{answer.status_code} {answer.text[:300]}" if answer.status_code >= 500 else ""


async def _call(channel: grpc.aio.Channel, request: Request, key: dict[str, str]) -> str:
    """The server's error, "" if there was none."""
    try:
        await channel.unary_unary(request.path)(request.content, timeout=120, metadata=[*key.items()])
    except grpc.aio.AioRpcError as exc:
        return str(exc)[:300] if exc.code() in _SERVER_ERRORS else ""
    return ""


async def _watch(url: str, key: dict[str, str], seconds: float, done: Callable[[], bool]) -> float:
    """The longest time, in seconds, between two pieces of a stream, until `done` and for so long at least."""
    body = {"model": _WATCHED, "prompt": "x", "max_tokens": CONTEXT // 2, "stream": True, "ignore_eos": True}
    worst_pause, last, end = 0.0, 0.0, time.monotonic() + seconds
    async with (
        httpx.AsyncClient(base_url=url, timeout=120, headers=key) as http,
        http.stream("POST", "/v1/completions", json=body) as answer,
    ):
        async for _ in answer.aiter_raw():
            now = time.monotonic()
            worst_pause, last = max(worst_pause, now - (last or now)), now
            if now > end and done():
                return worst_pause
    raise AssertionError("the stream ended")


def _used(redis: Redis) -> int:
    """Bytes of its memory."""
    return int(redis.info("memory")["used_memory"])


def pauses(
    system: System, grpc_port: int, out_dir: Path, times: int, seconds: float, most: int
) -> tuple[list[Pauses], float]:
    """Each run's pauses, and by how many bytes Redis grew. Raises: AssertionError: a client got a server's error."""
    # Clients have machines of their own: those here wait for the server where there are too few cores for both.
    command = ["nice", sys.executable, "-m", "ops.bench.overload.beside", system.url]
    command += map(str, (grpc_port, seconds, most))
    with httpx.Client(base_url=system.url) as http:
        key = _key(http, "watcher")
    runs = []
    with Redis.from_url(system.redis_url) as redis:
        before, most_used, look_time = _used(redis), 0, 0.0
        for number in range(times):
            without = asyncio.run(_watch(system.url, key, seconds, lambda: True))
            log = out_dir / f"beside-{number}.log"
            with process(command, log) as clients:

                def ended(clients: "subprocess.Popen[bytes]" = clients) -> bool:
                    nonlocal most_used, look_time
                    if time.monotonic() - look_time > 0.25:
                        look_time, most_used = time.monotonic(), max(most_used, _used(redis))
                    return clients.poll() is not None

                runs.append(Pauses(without, asyncio.run(_watch(system.url, key, 0.0, ended))))
                assert clients.returncode == 0, log.read_text()[-1000:]
    return runs, most_used - before


if __name__ == "__main__":
    asyncio.run(send(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])))
