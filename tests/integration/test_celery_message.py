"""Our task messages are the real thing to an ordinary Celery worker and to whoever watches its events."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from app.ids import QueueName, RequestId
from app.keys import PRIORITY_STEPS, Keys
from app.messages.celery_message import DECODE_TASK, task_message
from tests.stack import ROOT, stop, wait_until

pytestmark = pytest.mark.both_servers

KEYS, QUEUE = Keys("test"), QueueName("decode-pool-a.w1")


@pytest.fixture
def events(store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """An ordinary worker on the queue; the list fills with the events that Flower would get."""
    monkeypatch.setenv("ORDINARY_REDIS", store_url)
    Redis.from_url(store_url).flushall()
    command = [sys.executable, "-m", "celery", "-A", "tests.integration.ordinary_celery", "worker", "-Q", QUEUE]
    with (tmp_path / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [*command, "-P", "solo", "--without-mingle"], cwd=ROOT, env=dict(os.environ), stdout=log, stderr=log
        )
    event_list: list[dict[str, Any]] = []
    watching = Celery("watching", broker=store_url)
    watching.conf.broker_transport_options = {"global_keyprefix": KEYS.prefix}
    stopping = threading.Event()

    def capture() -> None:
        with watching.connection_for_read() as connection:
            receiver = watching.events.Receiver(connection, handlers={"*": event_list.append})
            while not stopping.is_set():
                try:
                    receiver.capture(limit=None, timeout=0.5, wakeup=True)
                except TimeoutError:
                    continue

    watcher = threading.Thread(target=capture)
    watcher.start()
    try:
        wait_until(lambda: any(e["type"].startswith("worker-") for e in event_list), "the worker is up", 30)
        yield event_list
    finally:
        stopping.set()
        watcher.join()
        stop(worker)


def test_an_ordinary_worker_runs_it_and_flower_would_show_it(events: list[dict[str, Any]], store_url: str) -> None:
    """Each priority step's list is read; id, arguments, retries and life cycle are those of a Celery task."""
    redis = Redis.from_url(store_url)
    for step in PRIORITY_STEPS:
        raw = task_message(DECODE_TASK, QUEUE, RequestId(f"chatcmpl-{step}"), 2, step)
        redis.lpush(KEYS.queue(QUEUE, step), raw)
    wait_until(lambda: redis.llen("seen") == 5 * len(PRIORITY_STEPS), "all tasks ran")
    values = [v.decode() for v in redis.lrange("seen", 0, -1)]
    for step in PRIORITY_STEPS:
        name = f"chatcmpl-{step}"
        assert [name, "2", name, "2", QUEUE] in [values[i : i + 5] for i in range(0, len(values), 5)]
    wait_until(lambda: sum(e["type"] == "task-succeeded" for e in events) == len(PRIORITY_STEPS), "all succeeded")
    event = next(e for e in events if e["type"] == "task-received" and e["uuid"] == "chatcmpl-0")
    assert event["name"] == DECODE_TASK
    assert event["args"] == "('chatcmpl-0', 2)"
    wait_until(lambda: redis.hlen("test:unacked") == 0, "all are acknowledged")
