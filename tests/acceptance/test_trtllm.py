"""TensorRT-LLM's adapter in real workers, prefill and decode apart: the engine is the double made from its contract."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serving import client_of
from tests.stack import BIN, ROOT, Stack, all_free, leases, stack, timeline, wait_until
from tests.trtllm.model import MOCK, SESSIONS

PREFILL, DECODE = "prefill-pool-a", "decode-pool-a"
LONG = "the quick brown fox jumps over the lazy dog " * 20
WHOLE = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}


def pool(role: str) -> dict[str, Any]:
    return {
        "role": role,
        "model": "m",
        "engine": "trtllm",
        "path": str(ROOT / "app/engines/mock/model"),
        "max_model_len": 2048,
        "disagg": {"remote_tokens": 64, "remote_wait_s": 60.0},
        "args": {"env": {MOCK: json.dumps({"speedup": 10.0, "total_blocks": 512, "answer_tokens": 40})}},
    }


@pytest.fixture(scope="module")
def fleet(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    path = tmp_path_factory.mktemp("trtllm")
    env = {"XYLEM_DEPLOYMENT": path.name, "XYLEM_HEARTBEAT_S": "0.2", "XYLEM_LEASE_TTL_S": "30"}
    double = f"{ROOT / 'tests/trtllm/package'}:{ROOT}"
    with stack(valkey_url, path, {PREFILL: pool("prefill"), DECODE: pool("decode")}, **env) as s:
        s.api()
        for name in (PREFILL, DECODE):  # started, not forked: what a fork imports is of another path
            env = {"PYTHONPATH": double, SESSIONS: str(path / f"{name}.sessions")}
            s.spawn(name, str(BIN / "celery"), "-A", "app", "worker", "-Q", name, **env)
        wait_until(lambda: leases(s, PREFILL) and leases(s, DECODE), "both workers", 60)
        s.wait_ready(model="m")
        yield s


def chat(s: Stack, question: str, **wanted: Any) -> tuple[str, str]:
    """The answer's id and text, streamed."""
    with client_of(s.url) as client:
        messages = [{"role": "user", "content": question}]
        chunks: list[Any] = list(
            client.chat.completions.create(model="m", messages=messages, stream=True, temperature=0, **wanted)  # type: ignore[call-overload]
        )
    return chunks[0].id, "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def test_a_long_prompt_is_computed_by_one_worker_and_answered_by_the_other(fleet: Stack) -> None:
    """The answer is the same as where one worker does both, and from then on the cache is known to the router."""
    id_, text = chat(fleet, LONG, max_tokens=12)
    (prefill,), (decode,) = leases(fleet, PREFILL), leases(fleet, DECODE)
    record = timeline(fleet, id_)
    assert [w["worker"] for w in record["workers"]] == [prefill.worker.id, decode.worker.id]
    assert record["workers"][1]["pulled"]["tokens"] == record["prompt_tokens"]
    wait_until(lambda: all_free(fleet, PREFILL, DECODE), "all is free again")

    def cached() -> bool:
        again, same = chat(fleet, LONG, max_tokens=12, prompt_cache_key="session")
        assert same == text
        return [w["worker"] for w in timeline(fleet, again)["workers"]] == [decode.worker.id]

    wait_until(cached, "the decode worker's KV events have arrived")
    assert set((fleet.directory / f"{DECODE}.sessions").read_text().split()) == {"session"}


def test_an_answer_is_held_to_its_schema(fleet: Stack) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": WHOLE, "strict": True}}
    _, text = chat(fleet, LONG + "?", response_format=schema, max_tokens=60)
    assert isinstance(json.loads(text)["ok"], bool)
