"""Pictures by SGLang's diffusion engine with tiny random weights: real processes, killed on the way."""

import os
import signal
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import OpenAI

from tests.acceptance.test_images import idle, running, steps
from tests.stack import Stack, pid_of_worker, stack, wait_until

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
        s.api()
        for name in ("w1", "w2"):
            s.worker(POOL, name=name)
        s.wait_ready(2, "painter", timeout_s=400)
        yield s


@pytest.fixture
def client(served: Stack) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=200) as c:
        yield c


def painted(client: OpenAI, steps: int, n: int = 1) -> list[bytes]:
    more = {"seed": 5, "num_inference_steps": steps}
    response = client.images.generate(model="painter", prompt="a cat", n=n, extra_body=more)
    return [b64decode(d.b64_json or "") for d in response.data or ()]


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
    reference = painted(client, 200)
    with ThreadPoolExecutor() as pool:
        future = pool.submit(painted, client, 200)
        run = wait_until(lambda: running(served), "it is painted")
        os.kill(pid_of_worker(served, POOL, run), signal.SIGKILL)
        assert future.result() == reference
