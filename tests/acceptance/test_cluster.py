"""The whole system on a Redis Cluster of three nodes: what is asked of a single Redis works there, too."""

import json
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tests.batching import TEXT, answered
from tests.cluster import Cluster, redis_cluster
from tests.redis_server import another_redis
from tests.serving import client_of
from tests.stack import BIN, Stack, mock_pool, stack, timeline, wait_until

DECODE, PREFILL = "decode-pool-a", "prefill-pool-a"
HANDOFF = {"nixl": True, "block_bytes": 65536}
POOLS = {
    DECODE: mock_pool(step_ms=10.0, handoff=HANDOFF)
    | {"role": "decode", "disagg": {"remote_tokens": 64, "remote_wait_s": 60.0}},
    PREFILL: mock_pool(step_ms=10.0, handoff=HANDOFF)
    | {"role": "prefill", "disagg": {"remote_tokens": 64, "remote_wait_s": 60.0}},
}
WORDS = "the quick brown fox jumps over the lazy dog and runs "


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, Cluster, OpenAI]]:
    """A replica, two workers that answer, one that prefills, and one for batches."""
    path = tmp_path_factory.mktemp("cluster")
    with (
        redis_cluster(path / "nodes") as cluster,
        another_redis(path) as broker,
        stack(cluster.url, path, POOLS, XYLEM_BROKER_URL=broker.url) as s,
        client_of(s.url) as client,
    ):
        s.api()
        for name, pool in {"one": DECODE, "two": DECODE, "prefill": PREFILL, "batch": "batch"}.items():
            s.worker(pool, name)
        all_there(s, cluster)
        yield s, cluster, client


def all_there(s: Stack, cluster: Cluster) -> None:
    s.wait_ready(2)
    wait_until(lambda: len(of_kind(cluster, "worker")) == 3, "all workers are there", 60)


def of_kind(cluster: Cluster, kind: str) -> list[str]:
    """The keys on all nodes."""
    return [key for keys in cluster.keys_of_nodes() for key in keys if key.split(":")[1] == kind]


def body(number: int, tokens: int, prompt: str = "hello") -> dict[str, Any]:
    extra = {"ignore_eos": True, "seed": number}
    return {"model": "mock", "prompt": f"{number} {prompt}", "max_tokens": tokens, "extra_body": extra}


def test_answers_are_streamed_and_keys_are_on_several_nodes(fleet: tuple[Stack, Cluster, OpenAI]) -> None:
    _, cluster, client = fleet
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda n: streamed(client, n), range(32)))
    assert all(answers)
    assert answers == [streamed(client, n) for n in range(32)], "the same with each seed"
    by_node = cluster.keys_of_nodes()
    assert all(key.startswith("{xylem") for keys in by_node for key in keys), by_node
    assert sum(any(":loads:" in key for key in keys) for keys in by_node) == 1


def streamed(client: OpenAI, number: int, tokens: int = 20) -> str:
    return "".join(chunk.choices[0].text for chunk in client.completions.create(**body(number, tokens), stream=True))


def test_long_prompts_are_computed_by_the_prefill_worker_and_known_by_their_prefix(
    fleet: tuple[Stack, Cluster, OpenAI],
) -> None:
    s, _, client = fleet
    request = {"model": "mock", "prompt": "once upon a time " + WORDS * 20, "max_tokens": 5}
    answer = client.completions.create(**request)  # type: ignore[call-overload]
    assert len(timeline(s, answer.id)["workers"]) == 2

    def is_known() -> bool:
        again = httpx.post(f"{s.url}/v1/completions", json=request, headers={"x-xylem-explain": "1"}, timeout=60)
        return any(part["blocks_cached"] for part in json.loads(again.headers["x-xylem-route"]))

    wait_until(is_known, "the prefix is known")


def test_the_answer_of_a_client_that_left_is_computed_no_further(fleet: tuple[Stack, Cluster, OpenAI]) -> None:
    _, cluster, client = fleet
    stream = client.completions.create(**body(1, 2000), stream=True)
    next(iter(stream))
    stream.close()
    wait_until(lambda: not of_kind(cluster, "reservations"), "nothing is reserved any more")


def test_a_killed_worker_loses_no_answer(fleet: tuple[Stack, Cluster, OpenAI]) -> None:
    s, cluster, client = fleet
    whole = [streamed(client, n, 300) for n in range(8)]
    with ThreadPoolExecutor(8) as threads:
        streams = [threads.submit(streamed, client, n, 300) for n in range(8)]
        victim = s.names["two"]
        wait_until(lambda: busy(s), "answers have begun")
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        assert [stream.result() for stream in streams] == whole
    s.worker(DECODE, "two")
    all_there(s, cluster)


def busy(s: Stack) -> bool:
    lines = httpx.get(f"{s.url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("xylem_requests_in_flight")) >= 8


def test_a_kept_answer_goes_on_without_its_client(fleet: tuple[Stack, Cluster, OpenAI]) -> None:
    _, cluster, client = fleet
    response = client.responses.create(model="mock", input="hello", background=True, max_output_tokens=30)
    end_state = wait_until(lambda: is_done(client, response.id), "it has ended")
    assert end_state.output_text
    nxt = client.responses.create(
        model="mock", input="and then?", previous_response_id=response.id, max_output_tokens=5
    )
    assert nxt.status in ("completed", "incomplete")
    tags = {
        kind: {key.partition("}")[0] for key in of_kind(cluster, kind)} for kind in ("loads", "kept", "cached", "out")
    }
    assert (tags["loads"], tags["kept"]) == ({"{xylem"}, {"{xylem.kept"})
    assert {f"{{xylem.{DECODE}", f"{{xylem.{PREFILL}"} >= tags["cached"] != set()
    assert all(tag.startswith("{xylem.") for tag in tags["out"])


def is_done(client: OpenAI, response: str) -> Any:
    current = client.responses.retrieve(response)
    return current if current.status in ("completed", "incomplete") else None


def test_a_batch_is_completed(fleet: tuple[Stack, Cluster, OpenAI]) -> None:
    _, _, client = fleet
    request = {"model": "mock", "prompt": "a line", "max_tokens": 5}
    counts = answered(client, [request] * 40, TEXT)[0].request_counts
    assert (counts.completed, counts.failed) == (40, 0)


def test_pools_are_paused_and_their_limits_changed(fleet: tuple[Stack, Cluster, OpenAI]) -> None:
    """Commands reach the workers, and their replies the replica."""
    s, _, client = fleet
    for action in ("pause", "resume"):
        answer = httpx.post(f"{s.url}/admin/pools/{PREFILL}/{action}", json={}, timeout=60)
        assert answer.is_success, answer.text
    limits_answer = httpx.patch(f"{s.url}/admin/pools/{DECODE}/limits", json={"max_queued": 7}, timeout=60)
    assert limits_answer.is_success, limits_answer.text
    assert streamed(client, 5)


def test_the_command_line_works_on_a_cluster(fleet: tuple[Stack, Cluster, OpenAI]) -> None:
    """API keys, and the doctor, who sees that each server answers."""
    s, cluster, _ = fleet

    def xylem(*args: str) -> str:
        run = subprocess.run([BIN / "xylem", *args], env=s.environment(), capture_output=True, text=True, check=False)
        return run.stdout + run.stderr

    output = xylem("keys", "create", "alice")
    assert "alice" in xylem("keys", "list"), output
    assert of_kind(cluster, "keys") == ["{xylem}:keys:api"]
    report = xylem("doctor")
    assert "cluster://127.0.0.1:" in report, report
    assert "✗" not in report, report
