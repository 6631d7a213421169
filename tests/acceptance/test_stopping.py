"""An API replica that is told to end, and whose answers take longer than it may wait."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.serving import begin
from tests.stack import Stack, leases, mock_pool, stack, wait_until

ASKED: dict[str, Any] = {"model": "mock", "max_tokens": 4000, "ignore_eos": True}
CHAT = {**ASKED, "messages": [{"role": "user", "content": "tell me"}]}
RESPONSE = {"model": "mock", "input": "tell me", "max_output_tokens": 4000, "ignore_eos": True}
NOT_KEPT = {**RESPONSE, "store": False}
# What is asked in streams: its path and body.
STREAMS = {
    "chat": ("/v1/chat/completions", CHAT),
    "kept chat": ("/v1/chat/completions", {**CHAT, "store": True}),
    "completion": ("/v1/completions", {**ASKED, "prompt": "tell me"}),
    "message": ("/v1/messages", CHAT),
    "response": ("/v1/responses", NOT_KEPT),
    "kept response": ("/v1/responses", RESPONSE),
}


@pytest.fixture
def replica(valkey_url: str, tmp_path: Path) -> Iterator[Stack]:
    pools = {"decode-pool-a": mock_pool(step_ms=20.0, max_running=8)}
    with stack(valkey_url, tmp_path, pools, XYLEM_DEPLOYMENT=tmp_path.name, XYLEM_DRAIN_TIMEOUT_S="1") as s:
        begin(s, XYLEM_DRAIN_TIMEOUT_S="60")
        yield s


def test_answers_that_take_longer_end_with_an_error(replica: Stack) -> None:
    """The error is the last event of a stream, in the dialect's shape, or else the response.

    The process isn't killed.
    """
    began: list[str] = []

    def streamed(name: str) -> dict[str, Any]:
        """The last event."""
        last, (path, body) = "", STREAMS[name]
        with httpx.stream("POST", replica.url + path, json={**body, "stream": True}, timeout=60) as answer:
            assert answer.status_code == 200
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    if not last:
                        began.append(name)
                    last = line[6:]
        event: dict[str, Any] = orjson.loads(last)
        return event

    def whole() -> httpx.Response:
        began.append("whole")
        return httpx.post(f"{replica.url}/v1/chat/completions", json=CHAT, timeout=60)

    with ThreadPoolExecutor(1 + len(STREAMS)) as threads:
        streams = {name: threads.submit(streamed, name) for name in STREAMS}
        future = threads.submit(whole)
        wait_until(lambda: len(began) == len(STREAMS) + 1 and running(replica) == len(began), "all have begun")
        replica.names["api"].send_signal(signal.SIGTERM)
        lasts = {name: stream.result() for name, stream in streams.items()}
        response = future.result()
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "server_stopping"
    assert {lasts[name]["error"]["code"] for name in ("chat", "kept chat", "completion")} == {"server_stopping"}
    assert lasts["message"]["type"] == "error"
    assert "being stopped" in lasts["message"]["error"]["message"]
    assert lasts["response"]["type"] == "response.failed"
    assert "being stopped" in lasts["response"]["response"]["error"]["message"]
    assert (lasts["kept response"]["type"], lasts["kept response"]["code"]) == ("error", "server_stopping")
    assert replica.names["api"].wait(20) == -signal.SIGTERM  # as uvicorn ends when all is done
    wait_until(lambda: running(replica) == 0, "no engine goes on for nobody")


def running(s: Stack) -> int:
    return sum(lease.load.running for lease in leases(s))
