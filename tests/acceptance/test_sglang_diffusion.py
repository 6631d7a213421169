"""A diffusion language model on two SGLang workers: its blocks are deltas, and an answer outlives its worker."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import BadRequestError

from tests.chaos.fleet import Fleet
from tests.dllm import BLOCK, random_dllm
from tests.serving import client_of
from tests.stack import all_free, leases, wait_until

pytestmark = [pytest.mark.timeout(600), pytest.mark.media]

POOL = "decode-pool-a"
ASKED: dict[str, Any] = {"model": "diffuses", "prompt": "The lighthouse", "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    pool = {
        "model": "diffuses", "engine": "sglang", "path": str(random_dllm()), "block_size": BLOCK, "max_model_len": 1024,
        "max_running": 4, "args": {"dllm_algorithm": "LowConfidence", "max_total_tokens": 4096},
    }  # fmt: skip
    with Fleet(tmp_path_factory.mktemp("dllm") / "fleet", {POOL: pool}, apis=1, workers=2) as f:
        yield f


def streamed(fleet: Fleet, on_first: Any = None, **more: Any) -> tuple[list[str], dict[str, int]]:
    """The texts of its deltas, and the usage."""
    texts, usage = [], {}
    body = ASKED | {"stream": True, "stream_options": {"include_usage": True}} | more
    with httpx.stream("POST", f"{fleet.urls()[0]}/v1/completions", json=body, timeout=200) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            assert "error" not in chunk, chunk
            usage = chunk.get("usage") or usage
            texts += [choice["text"] for choice in chunk["choices"]]
            if on_first is not None and len(texts) == 3:
                on_first()
    return texts, usage


def test_a_block_is_a_delta_and_usage_counts_tokens(fleet: Fleet) -> None:
    texts, usage = streamed(fleet, max_tokens=42)
    whole = httpx.post(f"{fleet.urls()[0]}/v1/completions", json=ASKED | {"max_tokens": 42}, timeout=200).json()
    assert "".join(texts) == whole["choices"][0]["text"]
    assert (usage["completion_tokens"], whole["usage"]["completion_tokens"]) == (42, 42)
    assert len(texts) <= 42 // BLOCK + 3, "a block each, what the prompt left of its last one, and the end"


def test_what_it_cannot_do_is_a_400_that_names_the_parameter(fleet: Fleet) -> None:
    with client_of(fleet.urls()[0]) as client:
        for name, value in {"n": 2, "logprobs": 1, "presence_penalty": 1.0, "logit_bias": {"5": 1}}.items():
            with pytest.raises(BadRequestError, match=f"{name}: not supported by diffusion language models"):
                client.completions.create(model="diffuses", prompt="The", **{name: value})  # type: ignore[call-overload]
        schema: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
        messages: Any = [{"role": "user", "content": "Hi"}]
        with pytest.raises(BadRequestError, match="response_format: not supported by diffusion language models"):
            client.chat.completions.create(model="diffuses", messages=messages, response_format=schema)


def test_an_answer_goes_on_at_the_other_worker(fleet: Fleet) -> None:
    """The same text as if nothing had happened, and nothing is held afterwards."""
    usual, _ = streamed(fleet, max_tokens=600)

    def kill() -> None:
        [busy] = [name for name, _ in fleet.worker_names if running(fleet, name)]
        fleet.process(busy).kill()

    texts, usage = streamed(fleet, kill, max_tokens=600)
    assert "".join(texts) == "".join(usual)
    assert usage["completion_tokens"] == 600
    wait_until(lambda: all_free(fleet.stack, POOL), "nothing is held")


def running(fleet: Fleet, name: str) -> int:
    pid = fleet.process(name).pid
    own_leases = [lease for lease in leases(fleet.stack, POOL) if lease.worker.pid == pid]
    return sum(int(fleet.redis.hlen(f"xylem:reservations:{lease.worker.id}")) for lease in own_leases)  # type: ignore[arg-type]
