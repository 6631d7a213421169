"""Hosts whose wall clocks are 40 s apart: real processes, each with a clock of its own."""

import json
from typing import Any

import httpx
import pytest

from tests.serving import served_by
from tests.stack import (
    BIN,
    PYTHON,
    Stack,
    all_free,
    free_port,
    leases,
    mock_pool,
    stop,
    timeline,
    wait_until,
)

POOL, PREFILL, DECODE = "decode-pool-a", "prefill-pool-b", "decode-pool-b"
OFF_S = 40
BODY: dict[str, Any] = {"model": "mock", "prompt": "What time is it?", "max_tokens": 20, "ignore_eos": True}
SLOW: dict[str, Any] = {"step_ms": 20.0, "answer_tokens": 4000}
APART: dict[str, Any] = {"disagg": {"remote_tokens": 64, "remote_wait_s": 60.0}}
BEHIND, AHEAD, TWO = "behind", "ahead", "apart"  # models, by the clocks of their workers; of the last, both are off
POOLS = {
    POOL: mock_pool(**SLOW),
    "pool-behind": mock_pool(model=BEHIND, **SLOW),
    "pool-ahead": mock_pool(model=AHEAD, **SLOW),
    PREFILL: mock_pool(model=TWO, handoff={"block_bytes": 4096}) | APART | {"role": "prefill"},
    DECODE: mock_pool(model=TWO, handoff={"block_bytes": 4096}) | APART | {"role": "decode"},
}


# An API replica and a worker whose clocks are right. Tests start those whose are not beside them.
fleet = served_by(POOLS, {"worker": POOL})


def off(s: Stack, seconds: int, name: str, *command: str, **env: str) -> None:
    """Starts one of this environment's commands with a clock that is ahead, or behind."""
    s.spawn(name, PYTHON, "-m", "tests.skewed", str(seconds), str(BIN / command[0]), *command[1:], **env)


def worker_off(s: Stack, seconds: int, queue: str) -> None:
    off(s, seconds, queue, "celery", "-A", "app", "worker", "-Q", queue)


def ask(url: str, **wanted: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/completions", json=BODY | wanted, timeout=60)


@pytest.mark.parametrize(("model", "seconds"), [(AHEAD, OFF_S), (BEHIND, -OFF_S)])
def test_a_worker_whose_clock_is_off_has_the_time_that_was_asked_for(fleet: Stack, model: str, seconds: int) -> None:
    """No less, no more, and nobody's figures are off by it."""
    pool = f"pool-{model}"
    worker_off(fleet, seconds, pool)
    fleet.wait_ready(model=model)
    for answer in (ask(fleet.url, model=model, timeout=OFF_S / 2) for _ in range(5)):
        assert answer.status_code == 200, answer.text
        stages = timeline(fleet, answer.json()["id"])["stages"]
        assert max(stages.values()) < OFF_S / 2, stages
    late = ask(fleet.url, model=model, timeout=1, max_tokens=3500)  # more than a minute's work
    assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")
    wait_until(lambda: all_free(fleet, pool), "its engine has stopped")


@pytest.mark.parametrize("seconds", [OFF_S, -OFF_S])
def test_kept_answers_and_batches_survive_a_replica_whose_clock_is_off(fleet: Stack, seconds: int) -> None:
    """Processes whose clocks are right, or off the other way, finish them."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    off(fleet, seconds, "off", "xylem", "api", XYLEM_PORT=str(port))
    batch_worker = f"batch{-seconds}"
    off(fleet, -seconds, batch_worker, "celery", "-A", "app", "worker", "-Q", "batch")
    fleet.wait_ready(url=url)
    wait_until(lambda: "batch_worker_ready" in fleet.log(batch_worker), "the batch worker is ready", 60)
    line = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": BODY}
    file = {"file": ("f.jsonl", json.dumps(line).encode())}
    upload = httpx.post(f"{url}/v1/files", data={"purpose": "batch"}, files=file, timeout=30).json()
    batch_body = {"input_file_id": upload["id"], "endpoint": "/v1/completions", "completion_window": "30s"}
    batch = httpx.post(f"{url}/v1/batches", json=batch_body, timeout=30).json()
    response_body = {"model": "mock", "input": "hi", "max_output_tokens": 300, "background": True}
    response_body |= {"timeout": 30, "ignore_eos": True}
    response = httpx.post(f"{url}/v1/responses", json=response_body, timeout=30).json()
    wait_until(lambda: [lease for lease in leases(fleet, POOL) if lease.load.running], "it is being answered")
    fleet.names["off"].kill()

    def status(kind: str, id_: str) -> str:
        return str(httpx.get(f"{fleet.url}/v1/{kind}/{id_}", timeout=10).json()["status"])

    ends = "completed", "incomplete", "failed", "expired", "cancelled"
    for kind, id_, end in (("responses", response["id"], "incomplete"), ("batches", batch["id"], "completed")):
        wait_until(lambda k=kind, i=id_: status(k, i) in ends, f"the end of {kind}")
        assert status(kind, id_) == end  # of the response: at its `max_output_tokens`
    stop(fleet.names[batch_worker])


def test_a_prompt_is_handed_over_between_workers_whose_clocks_differ(fleet: Stack) -> None:
    """Blocks that are lent for some seconds are not taken for expired."""
    worker_off(fleet, -OFF_S, PREFILL)
    worker_off(fleet, OFF_S, DECODE)
    fleet.wait_ready(model=TWO)
    wait_until(lambda: leases(fleet, PREFILL), "the prefill worker is there", 60)
    answer = ask(fleet.url, model=TWO, prompt="the quick brown fox jumps over the lazy dog " * 20)
    assert answer.status_code == 200, answer.text
    record = timeline(fleet, answer.json()["id"])
    assert [part.get("handoff_refused") for part in record["workers"]] == [None, None], record
    assert "pulled" in record["workers"][1], record
    assert max(record["stages"].values()) < OFF_S / 2, record
