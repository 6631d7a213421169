"""Hosts whose wall clocks are 40 s apart: real processes, each with a clock of its own."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis

from tests.stack import BIN, PYTHON, Stack, all_free, free_port, leases, mock_pool, stack, timeline, wait_until

POOL, PREFILL = "decode-pool-a", "prefill-pool-a"
OFF_S = 40
BODY: dict[str, Any] = {"model": "mock", "prompt": "What time is it?", "max_tokens": 20, "ignore_eos": True}


def off(s: Stack, seconds: int, name: str, *command: str, **env: str) -> None:
    """Starts one of this environment's commands with a clock that is ahead, or behind."""
    s.spawn(name, PYTHON, "-m", "tests.skewed", str(seconds), str(BIN / command[0]), *command[1:], **env)


def worker_off(s: Stack, seconds: int, queue: str = POOL) -> None:
    off(s, seconds, queue, "celery", "-A", "app", "worker", "-Q", queue)


def ask(url: str, **wanted: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/completions", json=BODY | wanted, timeout=60)


@pytest.mark.parametrize("seconds", [OFF_S, -OFF_S])
def test_a_worker_whose_clock_is_off_has_the_time_that_was_asked_for(
    valkey_url: str, tmp_path: Path, seconds: int
) -> None:
    """No less, no more, and nobody's figures are off by it."""
    Redis.from_url(valkey_url).flushall()
    with stack(valkey_url, tmp_path, {POOL: mock_pool(step_ms=20.0, answer_tokens=4000)}) as s:
        s.api()
        worker_off(s, seconds)
        s.wait_ready()
        for answer in (ask(s.url, timeout=OFF_S / 2) for _ in range(5)):
            assert answer.status_code == 200, answer.text
            stages = timeline(s, answer.json()["id"])["stages"]
            assert max(stages.values()) < OFF_S / 2, stages
        late = ask(s.url, timeout=1, max_tokens=1500)  # half a minute's work
        assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")
        wait_until(lambda: all_free(s, POOL), "its engine has stopped", 15)


@pytest.mark.parametrize("seconds", [OFF_S, -OFF_S])
def test_what_outlives_its_api_replica_does_not_depend_on_that_ones_clock(
    valkey_url: str, tmp_path: Path, seconds: int
) -> None:
    """A kept answer is adopted, and a batch is answered, by those whose clocks are right or off the other way."""
    Redis.from_url(valkey_url).flushall()
    with stack(valkey_url, tmp_path, {POOL: mock_pool(step_ms=20.0, answer_tokens=4000)}) as s:
        other = f"http://127.0.0.1:{(port := free_port())}"
        off(s, seconds, "api", "xylem", "api")
        s.api("other", port)
        s.worker()
        worker_off(s, -seconds, "batch")
        s.wait_ready()
        s.wait_ready(url=other)
        wait_until(lambda: "batch_worker_ready" in s.log("batch"), "the batch worker is ready")
        line = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": BODY}
        file = {"file": ("f.jsonl", json.dumps(line).encode())}
        uploaded = httpx.post(f"{s.url}/v1/files", data={"purpose": "batch"}, files=file).json()
        asked = {"input_file_id": uploaded["id"], "endpoint": "/v1/completions", "completion_window": "30s"}
        batch = httpx.post(f"{s.url}/v1/batches", json=asked).json()
        wanted = {"model": "mock", "input": "hi", "max_output_tokens": 300, "background": True}
        wanted |= {"timeout": 30, "ignore_eos": True}
        response = httpx.post(f"{s.url}/v1/responses", json=wanted).json()
        wait_until(lambda: [lease for lease in leases(s, POOL) if lease.running], "it is being answered")
        s.names["api"].kill()

        def status(kind: str, id_: str) -> str:
            return str(httpx.get(f"{other}/v1/{kind}/{id_}", timeout=10).json()["status"])

        ends = "completed", "incomplete", "failed", "expired", "cancelled"
        for kind, id_, end in (("responses", response["id"], "incomplete"), ("batches", batch["id"], "completed")):
            wait_until(lambda k=kind, i=id_: status(k, i) in ends, f"the end of {kind}")
            assert status(kind, id_) == end  # of the response: at its `max_output_tokens`


def test_a_prompt_is_handed_over_between_workers_whose_clocks_differ(valkey_url: str, tmp_path: Path) -> None:
    """What is lent for some seconds is not taken for expired."""
    Redis.from_url(valkey_url).flushall()
    apart = {"disagg": {"remote_tokens": 64, "remote_wait_s": 60.0}}
    pools = {
        PREFILL: mock_pool(handoff={"block_bytes": 4096}) | apart | {"role": "prefill"},
        POOL: mock_pool(handoff={"block_bytes": 4096}) | apart | {"role": "decode"},
    }
    with stack(valkey_url, tmp_path, pools) as s:
        s.api()
        worker_off(s, -OFF_S, PREFILL)
        worker_off(s, OFF_S)
        s.wait_ready()
        wait_until(lambda: leases(s, PREFILL), "the prefill worker is there")
        answer = ask(s.url, prompt="the quick brown fox jumps over the lazy dog " * 20)
        assert answer.status_code == 200, answer.text
        found = timeline(s, answer.json()["id"])
        assert [part.get("handoff_refused") for part in found["workers"]] == [None, None], found
        assert "pulled" in found["workers"][1], found
        assert max(found["stages"].values()) < OFF_S / 2, found
