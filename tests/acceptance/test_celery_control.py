"""Requests as operators see them with Celery's own commands, though Celery's pool does not run them."""

import json
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from app.ids import QueueName, RequestId, worker_queue
from app.keys import PRIORITY_STEPS, Keys
from app.messages.celery_message import DECODE_TASK, task_message
from tests.serving import served_by
from tests.shallow import shallow_model
from tests.stack import BIN, ROOT, Stack, leases, mock_pool, stop, wait_until

POOL, NARROW, KEYS = QueueName("decode-pool-a"), "narrow-pool", Keys("celery-control")
SLOW = {"model": "mock", "prompt": "a secret prompt", "max_tokens": 1500, "ignore_eos": True, "stream": True}
SHORT = {"model": "mock", "prompt": "hello", "max_tokens": 2}


APART = {
    role: mock_pool(model="apart", max_running=seats, step_ms=1.0)
    | {"role": role, "disagg": {"remote_tokens": 16, "remote_wait_s": 60.0}}
    for role, seats in (("prefill", 1), ("decode", 32))
}
served = served_by(
    {POOL: mock_pool(step_ms=10.0), NARROW: mock_pool(model="narrow", max_running=1, step_ms=1.0), **APART},
    {"worker": POOL},
)


def inspected(s: Stack, what: str, *args: str) -> Any:
    """The answer of its only worker to `celery inspect`."""
    (answer,) = inspected_of(s, what, 1, *args).values()
    return answer


def inspected_of(s: Stack, what: str, workers: int, *args: str) -> dict[str, Any]:
    """The answer of each worker to `celery inspect`, by the worker's name; checks that there are so many workers."""
    command = [str(BIN / "celery"), "-A", "app", "inspect", what, "--json", *args]
    result = subprocess.run(command, cwd=ROOT, env=s.environment(), check=True, capture_output=True, text=True)
    answers: dict[str, Any] = json.loads(result.stdout)
    assert len(answers) == workers
    return answers


def queued(s: Stack, message: bytes) -> None:
    s.redis.lpush(KEYS.queue(POOL, PRIORITY_STEPS[1]), message)


def test_a_running_request_is_listed_without_its_prompt_and_counted_once(served: Stack) -> None:
    count_before = inspected(served, "stats")["total"].get(DECODE_TASK, 0)
    with httpx.stream("POST", f"{served.url}/v1/completions", json=SLOW, timeout=30) as answer:
        lines = answer.iter_lines()
        request = json.loads(next(lines).removeprefix("data: "))["id"]
        (task,) = inspected(served, "active")
        assert (task["name"], task["id"]) == (DECODE_TASK, request)
        assert request in task["args"]
        assert inspected(served, "query_task", request)[request][0] == "active"
        assert inspected(served, "reserved") == []
        assert "secret" not in json.dumps(task)
    wait_until(lambda: inspected(served, "active") == [], "the client's leaving ended it")
    assert inspected(served, "stats")["total"][DECODE_TASK] == count_before + 1


def test_a_worker_takes_messages_from_a_queue_of_its_own_that_leaves_no_binding(served: Stack) -> None:
    """Redis would keep a binding of each worker that there ever was."""
    (lease,) = leases(served)
    own = worker_queue(POOL, lease.worker.id)
    assert {queue["name"] for queue in inspected(served, "active_queues")} == {POOL, own}
    bound = b"".join(
        b"".join(served.redis.smembers(key)) for key in served.redis.scan_iter("celery-control:_kombu.binding*.*")
    )
    assert POOL.encode() in bound
    assert own.encode() not in bound


def test_a_killed_worker_leaves_nothing_of_itself_with_celery(served: Stack) -> None:
    """The worker was bound to the exchange of remote control for ever, as was each Flower to that of events."""
    served.redis.sadd("celery-control:_kombu.binding.celery.pidbox", "\x06\x16\x06\x16celery@long-ago.celery.pidbox")
    worker = served.worker(NARROW, "narrow")
    served.wait_ready(model="narrow")
    assert inspected_of(served, "ping", 2)
    (lease,) = leases(served, NARROW)
    stop(worker, signal.SIGKILL)
    wait_until(lambda: not leases(served, NARROW), "its lease has ended")
    flower, process = served.flower(FLOWER_UNAUTHENTICATED_API="1", FLOWER_PURGE_OFFLINE_WORKERS="1")
    try:
        bindings = {
            key: served.redis.smembers(key) for key in served.redis.scan_iter("celery-control:_kombu.binding*.*")
        }
        assert not [members for members in bindings.values() if lease.worker.id.encode() in b"".join(members)]
        assert not [key for key in bindings if (b"pidbox" in key and b"reply" not in key) or b"celeryev" in key]
        wait_until(lambda: "@" in httpx.get(f"{flower}/api/workers?refresh=1").text, "Flower hears the others")
    finally:
        stop(process)


@pytest.mark.parametrize("args", ['["only one"]', '[1, {"no": "array"}, {}]', "no JSON"])
def test_a_message_that_cannot_be_understood_fails_alone(served: Stack, args: str) -> None:
    """Celery says so in the log, and the next request is answered."""
    message = json.loads(task_message(DECODE_TASK, POOL, RequestId("cmpl-odd"), 0, PRIORITY_STEPS[1]))
    message["properties"]["body_encoding"], message["body"] = None, args
    before = served.log("worker").count("not the arguments of")
    queued(served, json.dumps(message).encode())
    wait_until(lambda: served.log("worker").count("not the arguments of") > before, "the worker says so")
    assert httpx.post(f"{served.url}/v1/completions", json=SHORT, timeout=30).status_code == 200


def test_a_message_without_what_only_flower_needs_is_a_task_all_the_same(served: Stack) -> None:
    """Its request is not there any more, so nothing comes of it; `celery inspect` and Flower bear it."""
    message = json.loads(task_message(DECODE_TASK, POOL, RequestId("cmpl-bare"), 0, PRIORITY_STEPS[1]))
    message["headers"] = {name: message["headers"][name] for name in ("lang", "task", "id")}
    queued(served, json.dumps(message).encode())
    wait_until(lambda: not served.redis.exists(KEYS.queue(POOL, PRIORITY_STEPS[1])), "it was taken")
    assert httpx.post(f"{served.url}/v1/completions", json=SHORT, timeout=30).status_code == 200
    assert inspected(served, "active") == []


def test_a_revoked_task_never_begins(served: Stack) -> None:
    """The worker's other tasks do."""
    command = [str(BIN / "celery"), "-A", "app", "control", "revoke", "cmpl-gone"]
    subprocess.run(command, cwd=ROOT, env=served.environment(), check=True, capture_output=True)
    assert inspected(served, "revoked") == ["cmpl-gone"]
    count_before = inspected(served, "stats")["total"][DECODE_TASK]
    queued(served, task_message(DECODE_TASK, POOL, RequestId("cmpl-gone"), 0, PRIORITY_STEPS[1]))
    assert httpx.post(f"{served.url}/v1/completions", json=SHORT, timeout=30).status_code == 200
    wait_until(lambda: not served.redis.exists(KEYS.queue(POOL, PRIORITY_STEPS[1])), "it was taken")
    assert inspected(served, "stats")["total"][DECODE_TASK] == count_before + 1


@pytest.mark.parametrize("apart", [False, True])
def test_a_worker_with_one_seat_takes_the_next_message_when_a_task_ends(served: Stack, apart: bool) -> None:
    """The worker does not wait until something else happens to wake Celery, as it does a few times a second."""
    model = "apart" if apart else "narrow"
    names = [name for name, pool in served.pools.items() if pool["model"] == model]
    for name in names:
        served.worker(name, name)
    wait_until(lambda: all(leases(served, name) for name in names), "the workers are there")
    served.wait_ready(model=model)
    body = SHORT | {"model": model}
    with httpx.Client(base_url=served.url, timeout=60) as http, ThreadPoolExecutor(24) as threads:

        def status(number: int) -> int:
            return http.post("/v1/completions", json=body | {"prompt": f"{number} " + "word " * 99}).status_code

        began = time.monotonic()
        answers = list(threads.map(status, range(240)))
        took = time.monotonic() - began
    for name in names:
        stop(served.names[name])
    assert answers == [200] * 240
    assert took < 12, "three messages each 250 ms are 20 s"


def test_a_worker_whose_engine_is_not_installed_ends_with_one_sentence(served: Stack, tmp_path: Path) -> None:
    pools = tmp_path / "pools.yaml"
    pool = {"model": "odd", "engine": "trtllm", "path": str(shallow_model())}
    pools.write_text(yaml.safe_dump({"pools": {"odd-pool": pool}}))
    worker = served.worker("odd-pool", "odd", XYLEM_POOLS_FILE=str(pools))
    assert worker.wait(60) == 1
    log = served.log("odd")
    assert log.count("engine=trtllm: the package tensorrt_llm is not installed here: install the extra trtllm") == 1
    assert "Traceback" not in log
