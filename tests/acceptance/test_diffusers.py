"""Pictures and videos by diffusers with tiny random weights: real processes, killed on the way."""

import io
import os
import signal
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import av
import pytest
from openai import OpenAI
from PIL import Image

from tests.acceptance.test_images import idle, running, steps
from tests.serving import begin, refused
from tests.stack import Stack, pid_of_worker, stack, wait_until

pytestmark = [
    pytest.mark.media,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning"),
]

POOL, VIDEOS = "image-pool", "video-pool"


@pytest.fixture(scope="module")
def served(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two workers with Stable Diffusion, and one with Wan."""
    from tests.pipelines import make  # torch, which others need not import

    path = tmp_path_factory.mktemp("diffusers")
    common = {"engine": "diffusers", "task": "image", "max_running": 4, "args": {"threads": 1}}
    pictures = {"size": "32x32", "steps": 4, "max_steps": 2000}
    pools = {
        POOL: {"model": "painter", "path": str(make("sd", path / "sd")), "painting": pictures} | common,
        VIDEOS: {
            "model": "filmer",
            "path": str(make("wan", path / "wan")),
            "painting": {"size": "32x32", "steps": 4, "fps": 8, "videos": True},
        }
        | common,
    }
    more = {"XYLEM_MEDIA_STORE": str(path / "media"), "XYLEM_DEPLOYMENT": path.name}
    with stack(valkey_url, path, pools, **more) as s:
        begin(s, {"w1": POOL, "w2": POOL, "w3": VIDEOS}, 200)
        yield s


def painted(client: OpenAI, steps: int, n: int = 1) -> list[bytes]:
    response = client.images.generate(
        model="painter", prompt="a cat", n=n, extra_body={"seed": 5, "num_inference_steps": steps}
    )
    return [b64decode(d.b64_json or "") for d in response.data or ()]


def test_several_pictures_at_once_are_those_of_each_alone(client: OpenAI) -> None:
    together = painted(client, 4, n=4)
    assert len(set(together)) == 4
    assert together[:1] == painted(client, 4)


def painted_though_its_worker_dies(s: Stack, client: OpenAI) -> list[bytes]:
    with ThreadPoolExecutor() as pool:
        future = pool.submit(painted, client, 200)
        os.kill(pid_of_worker(s, POOL, wait_until(lambda: running(s), "it is painted")), signal.SIGKILL)
        return future.result()


def test_a_killed_workers_picture_is_painted_elsewhere_with_equal_bytes(served: Stack, client: OpenAI) -> None:
    assert painted_though_its_worker_dies(served, client) == painted(client, 200)


def test_a_client_that_leaves_stops_the_engine(served: Stack, client: OpenAI) -> None:
    wait_until(lambda: idle(served), "nothing is painted")
    began = steps(served)
    ask: dict[str, Any] = {"num_inference_steps": 800}
    with client.images.generate(
        model="painter", prompt="a cat", stream=True, partial_images=3, extra_body=ask
    ) as stream:
        next(iter(stream))
    wait_until(lambda: idle(served), "the picture is given up")
    assert 200 <= steps(served) - began < 800


def test_what_the_engine_cannot_edit_is_refused_by_its_name(client: OpenAI) -> None:
    file = io.BytesIO()
    Image.new("RGB", (32, 32), "red").save(file, "PNG")
    with refused("image"):
        client.images.edit(model="painter", prompt="a cat", image=[("a.png", file.getvalue())] * 2)


def test_a_video_can_be_played(client: OpenAI, tmp_path: Path) -> None:
    video = client.videos.create(model="filmer", prompt="a cat", seconds="1")  # type: ignore[arg-type]
    wait_until(lambda: client.videos.retrieve(video.id).status == "completed", "the video", 100)
    (tmp_path / "video.mp4").write_bytes(client.videos.download_content(video.id).content)
    with av.open(str(tmp_path / "video.mp4")) as container:
        assert sum(1 for _ in container.decode(video=0)) == 9
