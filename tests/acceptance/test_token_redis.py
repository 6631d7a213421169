"""Redis servers for tokens alone: one is killed under load, and loses everything; its tokens are not lost."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Semaphore

import httpx
import pytest

from tests.redis_server import RedisServer, another_redis
from tests.serving import client_of, serving
from tests.stack import Stack, mock_pool, stack, wait_until

POOL, STREAMS, TOKENS = "decode-pool-a", 12, 300


@contextmanager
def served(valkey_url: str, path: Path) -> Iterator[tuple[Stack, RedisServer, RedisServer]]:
    """One replica and two workers; the server of tokens that the replica has taken, and the other one."""
    with another_redis(path) as one, another_redis(path) as two:
        urls = f"{one.url},{two.url}"
        own = {"XYLEM_TOKEN_REDIS_URLS": urls, "XYLEM_DEPLOYMENT": path.name}
        with serving(valkey_url, path, {POOL: mock_pool(step_ms=10.0)}, {"one": POOL, "two": POOL}, **own) as s:
            yield (s, one, two) if one.client.pubsub_channels() else (s, two, one)


@pytest.mark.parametrize("own", [True, False])
def test_no_token_is_lost_with_a_server_of_tokens(valkey_url: str, tmp_path: Path, *, own: bool) -> None:
    """No token is lost of the answers in progress or of others, and no answer is computed elsewhere for it."""
    with (
        served(valkey_url, tmp_path) as (s, own_server, other),
        client_of(s.url) as client,
        ThreadPoolExecutor(STREAMS) as threads,
    ):
        progress = Semaphore(0)

        def answer(number: int, *, tells: bool = True) -> str:
            fields = {"model": "mock", "prompt": f"hello {number}", "seed": number, "max_tokens": TOKENS}
            text = ""
            for chunk in client.completions.create(**fields, stream=True, extra_body={"ignore_eos": True}):
                text += chunk.choices[0].text
                if tells:
                    progress.release()
            return text

        whole = list(threads.map(lambda n: answer(n, tells=False), range(STREAMS)))
        streams = [threads.submit(answer, number) for number in range(STREAMS)]
        for _ in range(10 * STREAMS):
            progress.acquire()
        victim = own_server if own else other
        victim.kill()
        if own:
            assert s.redis.keys(f"{s.deployment}:out:*") == []
            wait_until(lambda: not s.ready()["subscribed"], "the replica notices")  # type: ignore[index]
        victim.start()
        assert [stream.result() for stream in streams] == whole
        metrics = httpx.get(f"{s.url}/metrics").text.splitlines()
        migrations = [line for line in metrics if line.startswith("xylem_migrations_total")]
        assert migrations
        assert all(line.endswith(" 0.0") for line in migrations)


def test_a_worker_that_does_not_know_the_replicas_server_gets_no_request(valkey_url: str, tmp_path: Path) -> None:
    """Its tokens would not come: settings differ while they are changed."""
    with another_redis(tmp_path) as server, stack(valkey_url, tmp_path, {POOL: mock_pool()}) as s:
        s.api(XYLEM_TOKEN_REDIS_URLS=server.url, XYLEM_PATIENCE_S="0")
        s.worker(name="old")
        wait_until(lambda: s.redis.hlen(f"{s.deployment}:pool:{POOL}") == 1, "the worker is there")
        wait_until(s.ready, "the replica answers")
        body = {"model": "mock", "prompt": "hello", "max_tokens": 3}
        refusal = httpx.post(f"{s.url}/v1/completions", json=body)
        assert refusal.status_code == 503, refusal.text
        s.worker(name="new", XYLEM_TOKEN_REDIS_URLS=server.url)
        s.wait_ready()
        answer = httpx.post(f"{s.url}/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert "worker_lacks_token_redis" in s.log("api")
