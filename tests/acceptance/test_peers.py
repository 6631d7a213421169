"""Workers of one pool that take KV from each other: real processes and NIXL, the mock and real vLLM, `openai`."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.serving import client_of
from tests.stack import (
    ROOT,
    Stack,
    all_free,
    indexed_blocks,
    leases,
    metric,
    stack,
    timeline,
    wait_until,
    worker_process,
)

pytestmark = pytest.mark.timeout(400)

POOL, MODEL, SEATS, BURST = "decode-pool-a", "model", 2, 8
LONG = "the quick brown fox jumps over the lazy dog " * 120
HANDOFF = {"nixl": True, "block_bytes": 65536, "lease_s": 20.0, "timeout_s": 5.0}
# Each takes longer for `LONG` than for a burst of answers with its KV.
MOCK = {
    "engine": "mock",
    "args": {"step_ms": 5.0, "total_blocks": 1024, "prefill_tokens_per_s": 300.0, "handoff": HANDOFF},
}
VLLM = {
    "engine": "vllm",
    "path": str(ROOT / ".xylem/models/SmolLM2-135M-Instruct"),
    "args": {"dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 2**29},
}
ENV = {
    "XYLEM_LEASE_TTL_S": "5",
    "XYLEM_HEARTBEAT_S": "0.2",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}


def ask(s: Stack, seed: int, prompt: str = LONG) -> tuple[str, str]:
    """The answer, and the request's id."""
    with client_of(s.url) as c:
        fields: dict[str, Any] = {"model": MODEL, "prompt": prompt, "seed": seed, "temperature": 0, "max_tokens": 50}
        answer = c.completions.create(**fields, extra_body={"ignore_eos": True})
    return answer.choices[0].text, answer.id


@pytest.fixture(params=["mock", pytest.param("vllm", marks=pytest.mark.tiers)])
def busy(request: pytest.FixtureRequest, valkey_url: str, tmp_path: Path) -> Iterator[Stack]:
    """Two workers; one has the KV of `LONG`, and the other one has none."""
    engine = VLLM if request.param == "vllm" else MOCK
    pool = {"model": MODEL, "max_model_len": 4096, "max_running": SEATS, "peers": True, **engine}
    with stack(valkey_url, tmp_path, {POOL: pool}, XYLEM_DEPLOYMENT=tmp_path.name, **ENV) as s:
        s.api()
        s.worker(POOL, "holder")
        s.wait_ready(1, MODEL)
        ask(s, 0)
        wait_until(lambda: indexed_blocks(s, POOL) > 0, "the index has its blocks")
        ask(s, 0)  # a short one: how long a request has its seat isn't the time of a whole prefill any more
        s.worker(POOL, "other")
        s.wait_ready(2, MODEL)
        yield s


def pairs(s: Stack, answers: list[tuple[str, str]]) -> list[Any]:
    """The timelines of those that two workers had."""
    return [record for _text, id_ in answers if len((record := timeline(s, id_))["workers"]) == 2]


def test_a_free_worker_answers_with_the_kv_of_a_busy_one(busy: Stack) -> None:
    """The answer is the same as if it had computed the prompt."""
    alone = [ask(busy, seed)[0] for seed in range(BURST)]
    tokens_before = metric(busy, POOL, "prefill_tokens")
    with ThreadPoolExecutor(BURST) as threads:
        answers = list(threads.map(lambda seed: ask(busy, seed), range(BURST)))
    assert [text for text, _id in answers] == alone
    records = pairs(busy, answers)
    for pair in records:
        holder, other = pair["workers"]
        assert holder["worker"] != other["worker"]
    prompt = records[0]["prompt_tokens"]
    assert max(pair["workers"][1]["pulled"]["tokens"] for pair in records) == prompt
    wait_until(lambda: all_free(busy, POOL), "nothing is lent any more")
    wait_until(lambda: metric(busy, POOL, "pulled_tokens") > 0, "the workers' own counters say so")
    more = metric(busy, POOL, "prefill_tokens") - tokens_before
    assert more < prompt, "nobody computed the prompt again"


def test_a_holder_that_dies_costs_time_and_no_answer(busy: Stack) -> None:
    alone = [ask(busy, seed)[0] for seed in range(BURST)]
    with ThreadPoolExecutor(BURST) as threads:
        answers = [threads.submit(ask, busy, seed) for seed in range(BURST)]
        wait_until(lambda: metric(busy, POOL, "pulled_tokens") > 0, "one was lent")
        worker_process(busy, "holder").kill()
        assert [answer.result()[0] for answer in answers] == alone
    assert len(leases(busy, POOL)) == 1
