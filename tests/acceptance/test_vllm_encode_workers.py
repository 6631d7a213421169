"""Encode workers on real vLLM: the model that sees, whose pictures another worker encodes. NIXL moves them.

While the worker that answers is stopped, the picture's pixels in Redis are made blank: what it then says of the picture
it knows from the encoder. What kills the encoder is at the end of this file.
"""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from PIL import Image

from app.demo_models.model_folder import prepare
from app.demo_models.shapes import PROOF, seeing
from app.media.picture import picture_of
from app.messages.handoff import decode_embedding
from app.messages.wire import encode
from ops.bench.media.seen import exam, is_right, said
from ops.shapes.pictures import Question
from tests.encode_counts import settled, wait_for
from tests.serving import begin_on_cores, standing_still
from tests.stack import ROOT, Stack, leases, metric, stack, wait_until

pytestmark = [pytest.mark.timeout(900), pytest.mark.media]

MODELS = ROOT / ".xylem/models"
EYES, POOL, ALONE = "eyes-pool", "answer-pool", "alone-pool"
PICTURES, RIGHT = 50, 35  # the eyes see about 42 rightly; of a blank picture, few answers would be right
Case = tuple[Image.Image, Question]


@pytest.fixture(scope="module")
def served(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """An encoder and a worker that answers; and one that has no encoder."""
    model = MODELS / "shapes"
    prepare(model, lambda folder: seeing.prepare(MODELS / "SmolLM2-135M-Instruct", folder), PROOF)

    def pool(name: str, **more: Any) -> dict[str, Any]:
        args = {"kv_cache_memory_bytes": 2**28, "limit_mm_per_prompt": {"image": 4}}
        own = {"model": name, "engine": "vllm", "path": str(model), "max_model_len": 1024, "max_running": 8}
        return own | {"args": args} | more

    pools = {EYES: pool("sees", role="encode"), POOL: pool("sees"), ALONE: pool("alone")}
    path = tmp_path_factory.mktemp("vllm-encode")
    env = {"XYLEM_DEPLOYMENT": path.name, "XYLEM_HEARTBEAT_S": "0.2", "XYLEM_LEASE_TTL_S": "10"}
    with stack(valkey_url, path, pools, **env) as s:
        begin_on_cores(s)
        yield s


@pytest.fixture
def client(served: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=120) as http_client:
        yield http_client


def cases(seed: int, count: int = 1) -> list[Case]:
    return list(exam(seed, count))


def name_of(picture: Image.Image) -> str:
    return picture_of(picture.height, picture.width, picture.convert("RGB").tobytes()).sha256


def index_key(s: Stack, picture: Image.Image) -> str:
    return f"{s.deployment}:embedding:sees:{name_of(picture)}"


def said_of_blank(s: Stack, client: httpx.Client, picture: Image.Image, question: str) -> str:
    """The answer about a picture whose pixels only the encoder gets."""
    key = f"{s.deployment}:media:{name_of(picture)}"
    with ThreadPoolExecutor(1) as pool:
        with standing_still(s.names[POOL].pid):
            answer = pool.submit(said, client, "sees", picture, question)
            wait_until(lambda: s.redis.exists(index_key(s, picture)), "it is encoded")
            assert s.redis.set(key, bytes(3 * picture.height * picture.width), xx=True, keepttl=True)
        return answer.result()


def test_the_answer_is_of_the_picture_that_only_the_encoder_saw(served: Stack, client: httpx.Client) -> None:
    before, right = settled(served), 0
    for number, (picture, question) in enumerate(cases(1, PICTURES)):
        together = said(client, "alone", picture, question.text)
        apart = said_of_blank(served, client, picture, question.text)
        assert apart == together, f"picture {number}: {question.text}"
        right += is_right(apart, question)
    assert right >= RIGHT
    wait_for(served, before, encoded=PICTURES, found=0, fetched=PICTURES, lost=0, missing=0)


def test_a_second_question_needs_no_encoder(served: Stack, client: httpx.Client) -> None:
    [(picture, question)] = cases(2)
    before = settled(served)
    said(client, "sees", picture, question.text)
    with standing_still(served.names[EYES].pid):
        again = said(client, "sees", picture, "What is in the picture?")
    assert again == said(client, "alone", picture, "What is in the picture?")
    wait_for(served, before, encoded=1, found=0, fetched=2, lost=0, missing=0)


def test_another_picture_in_its_place_is_noticed(served: Stack, client: httpx.Client) -> None:
    [(picture, question)] = cases(3)
    before = settled(served)
    said(client, "sees", picture, question.text)
    handle = decode_embedding(served.redis.get(index_key(served, picture)))
    served.redis.set(index_key(served, picture), encode(replace(handle, checksum=handle.checksum ^ 1)))
    again = said(client, "sees", picture, "What is in the picture?")
    assert again == said(client, "alone", picture, "What is in the picture?")
    wait_for(served, before, encoded=1, fetched=1, lost=1, missing=0)


def test_an_encoder_that_dies_with_pictures_and_after_it_none(served: Stack, client: httpx.Client) -> None:
    """One waits there, one has been encoded there, one comes later: one answer for each, the right one."""
    earlier_case, waiting, later = cases(4, 3)
    reference_texts = [
        said(client, "alone", picture, question.text) for picture, question in (waiting, earlier_case, later)
    ]
    said(client, "sees", earlier_case[0], "What is in the picture?")
    before = {name: metric(served, POOL, f"pictures_{name}") for name in ("fetched", "lost", "missing")}
    [encoder] = leases(served, EYES)
    with ThreadPoolExecutor(1) as pool:
        os.kill(encoder.worker.pid, signal.SIGSTOP)
        answer = pool.submit(said, client, "sees", waiting[0], waiting[1].text)
        reservations_key = f"{served.deployment}:reservations:{encoder.worker.id}"
        wait_until(lambda: served.redis.hlen(reservations_key), "it waits for the encoder")
        os.kill(encoder.worker.pid, signal.SIGKILL)
        first = answer.result()
    others = [said(client, "sees", picture, question.text) for picture, question in (earlier_case, later)]
    assert [first, *others] == reference_texts
    counts = {"fetched": before["fetched"], "lost": before["lost"] + 1, "missing": before["missing"] + 2}
    wait_until(lambda: {name: metric(served, POOL, f"pictures_{name}") for name in counts} == counts, "counted")
