"""Redis servers for tokens alone: one is killed under load, and loses everything; its tokens are not lost."""

import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Semaphore

import httpx
import openai
import pytest
import redis

from tests.stack import Stack, free_port, mock_pool, redis_command, stack, stop_all, wait_until

POOL, STREAMS, TOKENS = "decode-pool-a", 12, 300


class TokenServer:
    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._command = redis_command(self.port, directory)
        self.client = redis.Redis(port=self.port, decode_responses=True)
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        wait_until(self._answers, "it answers")

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.ConnectionError:
            return False

    def has_replica(self) -> bool:
        return bool(self.client.pubsub_channels())


@contextmanager
def served(valkey_url: str, path: Path) -> Iterator[tuple[Stack, TokenServer, TokenServer]]:
    """One replica and two workers; the server of tokens that the replica has taken, and the other one."""
    servers = [TokenServer(path), TokenServer(path)]
    urls = ",".join(server.url for server in servers)
    try:
        with stack(valkey_url, path, {POOL: mock_pool(step_ms=10.0)}, XYLEM_TOKEN_REDIS_URLS=urls) as s:
            s.api()
            s.worker(name="one")
            s.worker(name="two")
            s.wait_ready(2)
            servers.sort(key=lambda server: not server.has_replica())
            yield s, *servers
    finally:
        stop_all([server.process for server in servers])


@pytest.mark.parametrize("own", [True, False])
def test_no_token_is_lost_with_a_server_of_tokens(valkey_url: str, tmp_path: Path, *, own: bool) -> None:
    """Neither of the answers in progress nor of others; and no answer is computed elsewhere for it."""
    with (
        served(valkey_url, tmp_path) as (s, taken, other),
        openai.OpenAI(base_url=f"{s.url}/v1", api_key="none", max_retries=0, timeout=60) as client,
        ThreadPoolExecutor(STREAMS) as threads,
    ):
        begun = Semaphore(0)

        def answer(number: int, *, tells: bool = True) -> str:
            asked = {"model": "mock", "prompt": f"hello {number}", "seed": number, "max_tokens": TOKENS}
            text = ""
            for chunk in client.completions.create(**asked, stream=True, extra_body={"ignore_eos": True}):
                text += chunk.choices[0].text
                if tells:
                    begun.release()
            return text

        whole = list(threads.map(lambda n: answer(n, tells=False), range(STREAMS)))
        streams = [threads.submit(answer, number) for number in range(STREAMS)]
        for _ in range(10 * STREAMS):
            begun.acquire()
        killed = taken if own else other
        killed.process.send_signal(signal.SIGKILL)
        killed.process.wait()
        if own:
            assert s.redis.keys(f"{s.deployment}:out:*") == []
            wait_until(lambda: not s.ready()["subscribed"], "the replica notices")  # type: ignore[index]
        killed.start()
        assert [stream.result() for stream in streams] == whole
        metrics = httpx.get(f"{s.url}/metrics").text.splitlines()
        assert [line for line in metrics if line.startswith("xylem_migrations_total")] == ["xylem_migrations_total 0.0"]


def test_a_worker_that_does_not_know_the_replicas_server_gets_no_request(valkey_url: str, tmp_path: Path) -> None:
    """Its tokens would not come: settings differ while they are changed."""
    server = TokenServer(tmp_path)
    try:
        with stack(valkey_url, tmp_path, {POOL: mock_pool()}) as s:
            s.api(XYLEM_TOKEN_REDIS_URLS=server.url, XYLEM_PATIENCE_S="0")
            s.worker(name="old")
            wait_until(lambda: s.redis.hlen(f"{s.deployment}:pool:{POOL}") == 1, "the worker is there")
            wait_until(s.ready, "the replica answers")
            body = {"model": "mock", "prompt": "hello", "max_tokens": 3}
            refused = httpx.post(f"{s.url}/v1/completions", json=body)
            assert refused.status_code == 503, refused.text
            s.worker(name="new", XYLEM_TOKEN_REDIS_URLS=server.url)
            s.wait_ready()
            answer = httpx.post(f"{s.url}/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            assert "worker_lacks_token_redis" in s.log("api")
    finally:
        stop_all([server.process])
