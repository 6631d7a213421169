"""The largest accepted bodies, beside another client's stream.

`python -m ops.bench.largest URL SECONDS BYTES` is the eight clients that send them.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
from redis import Redis

from ops.bench.load import System
from ops.bench.processes import process

CONTEXT = 131_072  # tokens
_CLIENTS = 8
MOST = 16 * 2**20  # bytes: XYLEM_MAX_BODY
_TOGETHER = 2**18  # tokens of a request's prompts
_WATCHED = "watched"  # a model of its own, so that only the API is measured, and not waiting for an engine
_ENGINE = {
    "engine": "mock", "max_model_len": CONTEXT,
    "args": {"step_ms": 20.0, "step_ms_per_sequence": 0, "total_blocks": 32_768, "prefill_tokens_per_s": float("inf")},
}  # fmt: skip
POOLS = {"decode-pool-a": {"model": "mock", **_ENGINE}, "watched-pool": {"model": _WATCHED, **_ENGINE}}
_FORM = b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n' + (
    b'--x\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n%b\r\n--x--\r\n'
)


def bodies(most: int) -> list[tuple[str, bytes]]:
    """The largest bodies with their paths, accepted and refused ones. `most`: bytes of the largest."""
    words = "The quick brown fox jumps over the lazy dog, again. "
    long = words * (most // len(words) - 10)
    context, together = (min(tokens, most // 8) for tokens in (CONTEXT, _TOGETHER))
    completions: list[dict[str, object]] = [
        {"prompt": [1500] * (context - 1)},
        {"prompt": [[1500] * (together // 128)] * 128},
        {"prompt": [1500] * (context - 1), "echo": True, "n": 2},
        {"prompt": [1] * (most // 3 - 100)},
        {"prompt": [[1]] * (most // 5 - 100)},
        {"prompt": words * (context // 30)},
        {"prompt": long},
        {"prompt": ["a"] * 128, "stop": ["x" * 1024] * 16},
        {"prompt": "a", "logit_bias": {str(i): 1 for i in range(2**16)}},
        {"prompt": "a", "x": [[]] * (most // 4 - 100)},
    ]
    chats: list[dict[str, object]] = [
        {"messages": [{"role": "user", "content": "hello"}] * 4096},
        {"messages": [{"role": "user", "content": long}]},
        {"messages": [{"role": "user", "content": "a"}] * (most // 40)},
    ]
    responses: list[dict[str, object]] = [
        {"input": words * (context // 30)}, {"input": "a", "user": "x" * (most - 1000)}, {"input": long},
    ]  # fmt: skip
    others: list[tuple[str, dict[str, object]]] = [
        ("/tokenize", {"prompt": "a" * together}),
        ("/tokenize", {"prompt": long}),
        ("/detokenize", {"tokens": [1500] * together}),
        ("/detokenize", {"tokens": [1] * (most // 3 - 100)}),
        ("/v1/batches", {"metadata": {str(i): "x" for i in range(4000)}}),
    ]
    asked = [("/v1/completions", {"max_tokens": 1, **body}) for body in completions]
    asked += [("/v1/chat/completions", {"max_tokens": 1, **body}) for body in chats]
    asked += [("/v1/responses", {"max_output_tokens": 1, **body}) for body in responses]
    found = [
        (path, json.dumps({"model": "mock", **body}, separators=(",", ":")).encode()) for path, body in asked + others
    ]
    return [*found, ("/v1/files", _FORM % (b"\r\n" * (most // 2)))]


async def send(url: str, seconds: float, most: int) -> None:
    """Each client sends all bodies in turn, beginning with different ones."""
    given, end = bodies(most), time.monotonic() + seconds

    async def client(first: int) -> None:
        turn = given[first:] + given[:first]
        async with httpx.AsyncClient(base_url=url, timeout=120) as http:
            while time.monotonic() < end:
                for path, raw in turn:
                    kind = "multipart/form-data; boundary=x" if path == "/v1/files" else "application/json"
                    try:
                        answer = await http.post(path, content=raw, headers={"content-type": kind})
                    except httpx.WriteError:  # refused for its length: the server closed the connection
                        continue
                    if answer.status_code >= 500:
                        raise SystemExit(f"{path}: {answer.status_code} {answer.text[:300]}")
                    if path == "/v1/files":
                        await http.delete(f"{path}/{answer.json()['id']}")
                    if time.monotonic() > end:
                        return

    async with asyncio.TaskGroup() as group:
        for i in range(_CLIENTS):
            group.create_task(client(i * len(given) // _CLIENTS))


async def watch(url: str, done: Callable[[], bool]) -> float:
    """The longest time, in seconds, between two pieces of another client's streams until `done`."""
    body = {"model": _WATCHED, "prompt": "x", "max_tokens": CONTEXT // 2, "stream": True, "ignore_eos": True}
    worst, last = 0.0, 0.0
    async with (
        httpx.AsyncClient(base_url=url, timeout=120) as http,
        http.stream("POST", "/v1/completions", json=body) as answer,
    ):
        async for _ in answer.aiter_raw():
            now = time.monotonic()
            worst, last = max(worst, now - (last or now)), now
            if done():
                return worst
    raise AssertionError("the stream ended")


def largest_bodies(system: System, out_dir: Path, seconds: float, most: int) -> dict[str, float]:
    """The figures. Raises: AssertionError when a client got a server error."""
    redis = Redis.from_url(system.redis_url)
    before, grown = int(redis.info("memory")["used_memory"]), 0.0
    command = [sys.executable, "-m", "ops.bench.largest", system.url, str(seconds), str(most)]
    looked = 0.0
    with redis, process(command, out_dir / "largest.log") as clients:

        def done() -> bool:
            nonlocal grown, looked
            if time.monotonic() - looked > 0.25:
                looked = time.monotonic()
                grown = max(grown, int(redis.info("memory")["used_memory"]) - before)
            return clients.poll() is not None

        worst = asyncio.run(watch(system.url, done))
        assert clients.returncode == 0, (out_dir / "largest.log").read_text()[-1000:]
    return {"worst_gap_ms": 1000 * worst, "redis_growth_mb": grown / 2**20}


if __name__ == "__main__":
    asyncio.run(send(sys.argv[1], float(sys.argv[2]), int(sys.argv[3])))
