"""Celery's `revoke` and `terminate`, and Flower's Terminate: requests end, whatever they are at, and with one error."""

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from app.ids import RequestId, WorkerId
from app.keys import Keys
from tests.serving import served_by
from tests.stack import BIN, ROOT, Stack, leases, mock_pool, stop, wait_until

POOL, NARROW, KEYS = "decode-pool-a", "narrow-pool", Keys("celery-revoke")
LONG = {"prompt": "a secret prompt", "max_tokens": 3000, "ignore_eos": True, "temperature": 0}
SHORT = {"prompt": "hello", "max_tokens": 2, "ignore_eos": True}
APART = {
    f"{role}-pool": mock_pool(model="apart", step_ms=10.0, prefill_tokens_per_s=50.0, max_running=4)
    | {"role": role, "disagg": {"remote_tokens": 16, "remote_wait_s": 60.0}}
    for role in ("prefill", "decode")
}
served = served_by(
    {POOL: mock_pool(step_ms=10.0), NARROW: mock_pool(model="narrow", max_running=1, step_ms=10.0), **APART}
)


def celery(s: Stack, *args: str) -> str:
    command = [str(BIN / "celery"), "-A", "app", *args]
    return subprocess.run(command, cwd=ROOT, env=s.environment(), check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def flower(served: Stack) -> Iterator[str]:
    url, process = served.flower(FLOWER_UNAUTHENTICATED_API="1")
    yield url
    stop(process)


def shown(flower: str, task: str) -> dict[str, Any]:
    """The task, as Flower shows it."""
    answer = httpx.get(f"{flower}/api/task/info/{task}", timeout=10)
    record: dict[str, Any] = answer.json() if answer.status_code == 200 else {}
    return record


def shown_in_state(flower: str, task: str, state: str) -> dict[str, Any]:
    def there() -> dict[str, Any] | None:
        record = shown(flower, task)
        return record if record.get("state") == state else None

    return wait_until(there, f"Flower shows {task} as {state}", 15, 0.1)


def placed(s: Stack, pool: str) -> list[str]:
    """The requests that have a place on the pool's worker."""
    (lease,) = leases(s, pool)
    return [run.decode().partition(".")[0] for run in s.redis.hkeys(KEYS.reservations(WorkerId(lease.worker.id)))]


@contextmanager
def running(s: Stack, model: str = "mock") -> Iterator[tuple[RequestId, Iterator[str]]]:
    """A request that streams, its id, and the rest of its events."""
    body = LONG | {"model": model, "stream": True}
    with httpx.stream("POST", f"{s.url}/v1/completions", json=body, timeout=60) as answer:
        events = (line.removeprefix("data: ") for line in answer.iter_lines() if line)
        yield RequestId(json.loads(next(events))["id"]), events


def revoked_by(s: Stack, flower: str, how: str, task: str) -> None:
    if how == "revoke":
        celery(s, "control", "revoke", task)
    elif how == "terminate":
        celery(s, "control", "terminate", "KILL", task)
    else:
        answer = httpx.post(f"{flower}/api/task/revoke/{task}", params={"terminate": "true"}, timeout=10)
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("how", ["revoke", "terminate", "Flower"])
def test_a_running_request_ends_with_one_error_and_its_seat_is_free(served: Stack, flower: str, how: str) -> None:
    with running(served) as (request, events):
        revoked_by(served, flower, how, request)
        rest = [json.loads(event) for event in events if event != "[DONE]"]
    assert [event["error"]["code"] for event in rest if "error" in event] == ["revoked"]
    assert "error" in rest[-1]
    assert len(rest) < LONG["max_tokens"]
    wait_until(lambda: placed(served, POOL) == [], "its place is free")
    record = shown_in_state(flower, request, "REVOKED")
    assert "'model': 'mock'" in record["result"]
    assert "'finish': 'revoked'" in record["result"]
    assert httpx.post(f"{served.url}/v1/completions", json=SHORT | {"model": "mock"}, timeout=30).status_code == 200


def test_a_request_that_waits_for_a_seat_ends_at_once(served: Stack, flower: str) -> None:
    """The one that has the seat goes on."""
    with ThreadPoolExecutor() as threads, running(served, "narrow") as (first, events):

        def whole() -> httpx.Response:
            return httpx.post(f"{served.url}/v1/completions", json=LONG | {"model": "narrow"}, timeout=60)

        waiting = [threads.submit(whole) for _ in range(6)]
        wait_until(lambda: len(placed(served, NARROW)) >= 4, "some have a place, and no seat")
        others = [request for request in placed(served, NARROW) if request != first]
        celery(served, "control", "revoke", *others)
        wait_until(lambda: sum(one.done() for one in waiting) >= len(others), "they have ended", 5)
        ends = [one.result() for one in waiting if one.done()]
        assert {(answer.status_code, answer.json()["error"]["code"]) for answer in ends} == {(499, "revoked")}
        assert "choices" in json.loads(next(events))
        wait_until(lambda: all_revoked(served, waiting), "all others have ended", 30, 0.2)


def all_revoked(s: Stack, waiting: "list[Future[httpx.Response]]") -> bool:
    """Revokes what has come to wait, and says whether nothing does any more."""
    celery(s, "control", "revoke", *placed(s, NARROW))
    return all(one.done() for one in waiting)


@pytest.mark.parametrize("stage", ["prefill", "decode"])
def test_a_request_in_two_stages_ends_in_either(served: Stack, flower: str, stage: str) -> None:
    """The task's own id is what Flower shows of a prefill; the request's id ends it as well."""
    prompt = "word " * (100 if stage == "prefill" else 20)

    def whole() -> httpx.Response:
        return httpx.post(f"{served.url}/v1/completions", json=LONG | {"model": "apart", "prompt": prompt}, timeout=120)

    with ThreadPoolExecutor() as threads:
        answer = threads.submit(whole)
        (request,) = wait_until(lambda: placed(served, f"{stage}-pool"), "it is there")
        task = f"{request}.0.prefill"
        if stage == "decode":
            shown_in_state(flower, task, "SUCCESS")
            task = request
        revoked_by(served, flower, "Flower", task)
        end = answer.result(10)
    assert (end.status_code, end.json()["error"]["code"]) == (499, "revoked")
    shown_in_state(flower, task, "REVOKED")
    wait_until(lambda: not placed(served, "prefill-pool") + placed(served, "decode-pool"), "both places are free")


def test_a_finished_task_says_what_it_has_cost_and_nothing_of_its_text(served: Stack, flower: str) -> None:
    body = {"model": "mock", "prompt": "a secret prompt", "max_tokens": 7, "ignore_eos": True}
    answer = httpx.post(f"{served.url}/v1/completions", json=body, timeout=30).json()
    record = shown_in_state(flower, answer["id"], "SUCCESS")
    usage = answer["usage"]
    cost = {
        "model": "mock",
        "prompt_tokens": usage["prompt_tokens"],
        "answer_tokens": usage["completion_tokens"],
        "finish": "length",
    }
    assert record["result"] == repr(cost)
    assert "secret" not in json.dumps(record)
    assert answer["choices"][0]["text"] not in json.dumps(record)
