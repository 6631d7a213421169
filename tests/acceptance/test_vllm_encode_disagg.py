"""Encode, prefill and decode on three workers of real vLLM: rows and KV over NIXL. Random weights.

Qwen2-VL counts positions by a picture's grid: a decode worker that had tokens only would answer otherwise.
"""

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI
from PIL import Image

from tests.acceptance.test_media_of_engines import asked
from tests.serving import begin_on_cores
from tests.stack import Stack, leases, metric, stack, timeline, wait_until
from tests.vlm import Kind, random_vlm

pytestmark = [pytest.mark.timeout(900), pytest.mark.media]

EYES, PREFILL, DECODE, ALONE = "eyes-pool", "prefill-pool", "decode-pool", "alone-pool"
ROLES = {EYES: "encode", PREFILL: "prefill", DECODE: "decode"}


@pytest.fixture(scope="module", params=["qwen2_vl", "idefics3"])
def served(
    request: pytest.FixtureRequest, valkey_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    kind: Kind = request.param

    def pool(model: str, **more: Any) -> dict[str, Any]:
        limit = {"image": 4, "video": 0} if kind == "qwen2_vl" else {"image": 4}
        args = {"kv_cache_memory_bytes": 2**27, "limit_mm_per_prompt": limit}
        own = {"model": model, "engine": "vllm", "path": str(random_vlm(kind)), "max_model_len": 1024}
        return own | {"max_running": 8, "args": args} | more

    split = {"disagg": {"remote_tokens": 32, "remote_wait_s": 60.0}}
    pools = {name: pool("sees", role=role, **(split if role != "encode" else {})) for name, role in ROLES.items()}
    path = tmp_path_factory.mktemp("vllm-three")
    with stack(valkey_url, path, pools | {ALONE: pool("alone")}, XYLEM_DEPLOYMENT=path.name) as s:
        begin_on_cores(s)
        yield s


def answer(client: OpenAI, model: str, messages: list[Any]) -> Any:
    return client.chat.completions.create(model=model, messages=messages, max_tokens=12, temperature=0)


def stripes(seed: int) -> Image.Image:
    picture = Image.new("RGB", (224, 112), (seed * 37 % 256, 255 - seed * 5, seed * 91 % 256))
    picture.paste((255 - seed * 5, seed * 61 % 256, 17), (0, seed % 50, 224, seed % 50 + 40))
    return picture


def counts(s: Stack) -> dict[tuple[str, str], float]:
    names = ("encoded", "fetched", "lost", "missing")
    return {(pool, name): metric(s, pool, f"pictures_{name}") for pool in ROLES for name in names}


def test_the_three_answer_as_one_does(served: Stack, client: OpenAI) -> None:
    before, texts = counts(served), set()
    for seed in range(10):
        messages = asked(stripes(seed), stripes(seed + 100))
        response = answer(client, "sees", messages)
        text = response.choices[0].message.content
        assert text == answer(client, "alone", messages).choices[0].message.content
        roles = {lease.worker.id: lease.worker.role for lease in leases(served)}
        assert [roles[part["worker"]] for part in timeline(served, response.id)["workers"]] == ["prefill", "decode"]
        texts.add(text)
    assert len(texts) > 1
    after = {**before, (EYES, "encoded"): before[EYES, "encoded"] + 20}
    after[PREFILL, "fetched"] += 20
    wait_until(lambda: counts(served) == after, "the prefill worker has the rows, and the decode worker needs none")


def test_without_an_encode_worker_the_prefill_worker_encodes(served: Stack, client: OpenAI) -> None:
    """Encode and prefill in one worker."""
    messages, before = asked(stripes(50)), metric(served, PREFILL, "pictures_missing")
    reference = answer(client, "alone", messages).choices[0].message.content
    served.names[EYES].send_signal(signal.SIGTERM)
    wait_until(lambda: not leases(served, EYES), "no encode worker")
    response = answer(client, "sees", messages)
    assert response.choices[0].message.content == reference
    assert len(timeline(served, response.id)["workers"]) == 2
    wait_until(lambda: metric(served, PREFILL, "pictures_missing") == before + 1, "it is counted")
