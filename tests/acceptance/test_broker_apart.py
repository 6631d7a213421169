"""Celery's broker on another server than all else: what is lost between the two is sent again."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from openai import OpenAI

from tests.batching import TEXT, answered
from tests.redis_server import RedisServer, another_redis
from tests.serving import begin, client_of, replica_of, standing_still
from tests.stack import BIN, Stack, mock_pool, stack, timeline, wait_until

PREFILL, DECODE = "prefill-pool-a", "decode-pool-a"
HANDOFF = {"nixl": True, "block_bytes": 65536}
APART = {
    PREFILL: mock_pool(handoff=HANDOFF) | {"role": "prefill", "disagg": {"remote_tokens": 64, "remote_wait_s": 60.0}},
    DECODE: mock_pool(handoff=HANDOFF) | {"role": "decode"},
}


@contextmanager
def served(
    valkey_url: str, path: Path, pools: dict[str, dict[str, Any]]
) -> Iterator[tuple[Stack, RedisServer, OpenAI]]:
    """A replica, a worker of each pool, and the broker."""
    with (
        another_redis(path) as broker,
        stack(valkey_url, path, pools, XYLEM_BROKER_URL=broker.url, XYLEM_DEPLOYMENT=path.name) as s,
    ):
        begin(s)
        with client_of(s.url) as client:
            yield s, broker, client


def ask(client: OpenAI, number: int, tokens: int = 100, prompt: str = "hello") -> Any:
    fields: dict[str, Any] = {"model": "mock", "prompt": f"{number} {prompt}", "seed": number, "max_tokens": tokens}
    return client.completions.create(**fields, extra_body={"ignore_eos": True})


def reserved(s: Stack) -> int:
    """Number of runs that are reserved at workers."""
    return sum(s.redis.hlen(key) for key in s.redis.keys(f"{s.deployment}:reservations:*"))


def held(s: Stack) -> float:
    """Number of requests that the replica holds."""
    lines = httpx.get(f"{s.url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("xylem_requests_held"))


def test_prefill_decode_and_batches_go_through_the_broker(valkey_url: str, tmp_path: Path) -> None:
    with served(valkey_url, tmp_path, APART) as (s, broker, client):
        answer = ask(client, 1, prompt="the quick brown fox jumps over the lazy dog " * 20)
        assert len(timeline(s, answer.id)["workers"]) == 2, "Celery's chain has started the decode task"
        s.start("batch", str(BIN / "celery"), "-A", "app", "worker", "-Q", "batch")
        answered(client, [{"model": "mock", "prompt": "hi"}], TEXT)
        assert any("_kombu" in key for key in broker.client.keys("*"))
        assert not s.redis.keys(f"{s.deployment}:_kombu*")


def waiting(s: Stack, broker: RedisServer, messages: int) -> list[str]:
    """The queues of the decode pool's worker, once so many messages are there."""
    queues = f"{s.deployment}:{DECODE}.*"

    def enough() -> list[str]:
        keys = broker.client.keys(queues)
        return keys if sum(broker.client.llen(queue) for queue in keys) >= messages else []

    return wait_until(enough, f"{messages} messages wait in the queue")


def test_messages_that_the_broker_loses_are_sent_again(valkey_url: str, tmp_path: Path) -> None:
    """The broker is killed with a queue of them, keeps nothing, and more requests come while it is away."""
    pools = {DECODE: mock_pool(max_running=2)}
    with served(valkey_url, tmp_path, pools) as (s, broker, client), ThreadPoolExecutor(40) as threads:
        whole = [ask(client, number).choices[0].text for number in range(4)]
        with standing_still(s.names[DECODE].pid):
            before = [threads.submit(ask, client, number % 4) for number in range(24)]
            waiting(s, broker, 20)  # the worker's own command has taken one or two from Redis
            broker.kill()
        during = [threads.submit(ask, client, number % 4) for number in range(8)]
        wait_until(lambda: held(s) >= 8, "they are held")
        broker.start()
        assert [answer.result().choices[0].text for answer in before + during] == whole * 8
        wait_until(lambda: reserved(s) == 0, "nothing is reserved any more")


def test_a_replica_killed_between_reservation_and_message_loses_no_kept_answer(valkey_url: str, tmp_path: Path) -> None:
    """The broker stands still: the replica has written record and reservation, and waits to send the message."""
    with served(valkey_url, tmp_path, {DECODE: mock_pool()}) as (s, broker, client):
        other = replica_of(s, "other")
        with standing_still(broker.process.pid):
            response = client.responses.create(model="mock", input="hello", max_output_tokens=20, background=True)
            wait_until(lambda: reserved(s) == 1, "record and reservation are written")
            s.names["api"].kill()
        with client_of(other) as adopter:
            wait_until(lambda: adopter.responses.retrieve(response.id).status == "incomplete", "it has all its tokens")
            assert adopter.responses.retrieve(response.id).usage.output_tokens == 20
        wait_until(lambda: reserved(s) == 0, "nothing is reserved any more")


def test_a_reservation_without_a_message_is_given_back_by_its_worker(valkey_url: str, tmp_path: Path) -> None:
    """The worker gives the request back to its replica, which sends it again."""
    with served(valkey_url, tmp_path, {DECODE: mock_pool(max_running=1)}) as (s, broker, client):
        with ThreadPoolExecutor(8) as threads:
            with standing_still(s.names[DECODE].pid):
                answers = [threads.submit(ask, client, 1) for _ in range(8)]
                broker.client.delete(*waiting(s, broker, 6))
            assert len({answer.result().choices[0].text for answer in answers}) == 1
        assert "request_was_lost_on_its_way" in s.log(DECODE)


def test_a_worker_with_another_broker_gets_no_request(valkey_url: str, tmp_path: Path) -> None:
    """Its messages would not come: settings differ while they are changed."""
    with another_redis(tmp_path) as broker, stack(valkey_url, tmp_path, {DECODE: mock_pool()}) as s:
        s.api(XYLEM_BROKER_URL=broker.url, XYLEM_PATIENCE_S="0")
        s.worker(name="old")
        wait_until(lambda: s.redis.hlen(f"{s.deployment}:pool:{DECODE}") == 1, "the worker is there")
        wait_until(s.ready, "the replica answers")
        body = {"model": "mock", "prompt": "hello", "max_tokens": 3}
        refusal = httpx.post(f"{s.url}/v1/completions", json=body)
        assert refusal.status_code == 503, refusal.text
        s.worker(name="new", XYLEM_BROKER_URL=broker.url)
        s.wait_ready()
        answer = httpx.post(f"{s.url}/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert s.log("api").count("worker_has_another_broker") == 1, "though its lease is read again and again"
