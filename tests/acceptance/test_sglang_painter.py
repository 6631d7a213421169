"""Pictures by SGLang's diffusion engine with tiny random weights: real processes, killed on the way."""

from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.acceptance.test_diffusers import painted, painted_though_its_worker_dies
from tests.acceptance.test_images import idle, steps
from tests.serving import begin
from tests.stack import Stack, stack, wait_until

pytestmark = [pytest.mark.media, pytest.mark.timeout(600)]

POOL = "image-pool"


@pytest.fixture(scope="module")
def served(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    from tests.pipelines import make  # torch, which others need not import

    path = tmp_path_factory.mktemp("sglang")
    pool = {
        "model": "painter", "engine": "sglang", "task": "image", "path": str(make("sd", path / "sd")),
        "painting": {"size": "32x32", "steps": 4, "max_steps": 2000},
    }  # fmt: skip
    with stack(valkey_url, path, {POOL: pool}, XYLEM_DEPLOYMENT=path.name) as s:
        begin(s, {"w1": POOL, "w2": POOL}, 400)
        yield s


def test_a_client_that_leaves_stops_the_engine(served: Stack, client: OpenAI) -> None:
    several = painted(client, 4, n=3)
    assert len(set(several)) == 3
    assert several[:1] == painted(client, 4)
    wait_until(lambda: idle(served), "nothing is painted")
    began = steps(served)
    ask: dict[str, Any] = {"num_inference_steps": 900}
    with client.images.generate(model="painter", prompt="a cat", stream=True, extra_body=ask):
        wait_until(lambda: steps(served) > began, "it is painted")
    wait_until(lambda: idle(served), "the picture is given up")
    assert steps(served) - began < 900


def test_a_killed_workers_picture_is_painted_elsewhere_with_equal_bytes(served: Stack, client: OpenAI) -> None:
    assert painted_though_its_worker_dies(served, client) == painted(client, 200)
