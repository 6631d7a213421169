"""Encode, prefill and decode on three workers of real SGLang: rows and KV over NIXL. Random weights.

Prefill and decode meet in a room, when the pictures are encoded.
"""

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.acceptance.test_media_of_engines import asked
from tests.acceptance.test_vllm_encode_disagg import ROLES, answer, counts, stripes
from tests.encode_counts import settled, wait_for
from tests.serving import begin_on_cores, standing_still
from tests.stack import Stack, leases, metric, stack, timeline, wait_until
from tests.vlm import random_vlm

pytestmark = [pytest.mark.timeout(900), pytest.mark.media, pytest.mark.real_engine]

EYES, PREFILL, _DECODE = ROLES
ALONE = "alone-pool"


@pytest.fixture(scope="module")
def served(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    def pool(model: str, **more: Any) -> dict[str, Any]:
        own = {"model": model, "engine": "sglang", "path": str(random_vlm("qwen2_vl")), "max_model_len": 1024}
        return own | {"max_running": 4, "args": {"max_total_tokens": 8192}} | more

    path = tmp_path_factory.mktemp("sglang-three")
    pools = {name: pool("sees", role=role) for name, role in ROLES.items()} | {ALONE: pool("alone")}
    with stack(valkey_url, path, pools, XYLEM_DEPLOYMENT=path.name) as s:
        begin_on_cores(s)
        yield s


def text(client: OpenAI, model: str, messages: list[Any]) -> str:
    return str(answer(client, model, messages).choices[0].message.content)


def test_the_three_answer_as_one_does(served: Stack, client: OpenAI) -> None:
    before, texts = counts(served), set()
    for seed in range(4):
        messages = asked(stripes(seed), stripes(seed + 100))
        response = answer(client, "sees", messages)
        assert response.choices[0].message.content == text(client, "alone", messages)
        roles = {lease.worker.id: lease.worker.role for lease in leases(served)}
        # An SGLang that decodes computes no prompts; the prefill's end may come behind a short answer.
        assert roles[timeline(served, response.id)["workers"][-1]["worker"]] == "decode"
        texts.add(response.choices[0].message.content)
    assert len(texts) > 1
    after = {**before, (EYES, "encoded"): before[EYES, "encoded"] + 8}
    after[PREFILL, "fetched"] += 8
    wait_until(lambda: counts(served) == after, "the prefill worker has the rows, and the decode worker needs none")


def test_a_second_question_needs_no_encoder(served: Stack, client: OpenAI) -> None:
    before, again = settled(served), asked(stripes(31), stripes(30))
    for seed in (30, 31):
        text(client, "sees", asked(stripes(seed)))
    with standing_still(served.names[EYES].pid):
        second = text(client, "sees", again)
    assert second == text(client, "alone", again)
    wait_for(served, before, encoded=2, found=0, fetched=4, lost=0, missing=0)


def test_without_an_encode_worker_the_prefill_worker_encodes(served: Stack, client: OpenAI) -> None:
    messages, before = asked(stripes(50)), metric(served, PREFILL, "pictures_missing")
    served.names[EYES].send_signal(signal.SIGTERM)
    wait_until(lambda: not leases(served, EYES), "no encode worker")
    assert text(client, "sees", messages) == text(client, "alone", messages)
    wait_until(lambda: metric(served, PREFILL, "pictures_missing") == before + 1, "it is counted")
