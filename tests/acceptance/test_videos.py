"""Videos as jobs: real processes, the official client, and a mock engine."""

import signal
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from app.messages.job import Painting
from app.painters.mock import picture
from tests.serving import replica_of, served_by
from tests.stack import Stack, leases, metric, stop, wait_until

pytestmark = pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")  # OpenAI's own service ends

VIDEOS = "video-pool"
RULES = {"size": "64x64", "sizes": ["32x32"], "steps": 10, "max_steps": 2000, "videos": True, "fps": 8}


PAINTS = {"engine": "mock", "task": "image"}
served = served_by(
    {
        VIDEOS: {"model": "filmer", "args": {"step_ms": 20.0}, "painting": RULES, **PAINTS},
        "image-pool": {"model": "painter", **PAINTS},
    },
    {"worker": VIDEOS}, XYLEM_MEDIA_STORE="{path}/media", XYLEM_MEDIA_KEEP_S="3600",
)  # fmt: skip


def film(prompt: str, seed: int, steps: int = 10, frames: int = 9) -> bytes:
    painting = Painting(prompt, 64, 64, steps, seed, format="mp4", frames=frames, fps=8)
    return picture(painting, steps)


def video_until(client: OpenAI, id_: str, status: str) -> Any:
    return wait_until(lambda: v if (v := client.videos.retrieve(id_)).status == status else None, f"video {status}", 30)


def begin_video(client: OpenAI, prompt: str, **more: Any) -> Any:
    return client.videos.create(model="filmer", prompt=prompt, seconds="1", extra_body=more)  # type: ignore[arg-type]


def test_a_video_is_a_job_with_its_progress_and_content(served: Stack, client: OpenAI) -> None:
    video = begin_video(client, "a cat", seed=5, num_inference_steps=60)
    assert (video.status, video.progress, video.seconds, video.size) == ("queued", 0, "1.125", "64x64")
    running_video = wait_until(lambda: v if (v := client.videos.retrieve(video.id)).progress else None, "its progress")
    assert running_video.status == "in_progress"
    with pytest.raises(openai.BadRequestError, match="not complete"):
        client.videos.download_content(video.id)
    end_state = video_until(client, video.id, "completed")
    assert (end_state.progress, end_state.expires_at - end_state.completed_at) == (100, 3600)
    content = client.videos.download_content(video.id)
    assert content.content == film("a cat", 5, 60)
    assert content.response.headers["content-type"] == "video/mp4"


def test_videos_are_listed_newest_first_and_deleted_with_their_files(served: Stack, client: OpenAI) -> None:
    ids = [begin_video(client, f"number {i}").id for i in range(3)]
    for id_ in ids:
        video_until(client, id_, "completed")
    assert [v.id for v in client.videos.list(limit=2)][:3] == ids[::-1]  # the client asks for further pages
    assert client.videos.delete(ids[1]).deleted
    assert ids[1] not in [v.id for v in client.videos.list()]
    assert not (served.directory / "media" / "files" / ids[1]).exists()
    with pytest.raises(openai.NotFoundError):
        client.videos.retrieve(ids[1])
    with pytest.raises(openai.NotFoundError):
        client.videos.download_content(ids[1])


def test_a_deleted_video_is_not_made_to_its_end(served: Stack, client: OpenAI) -> None:
    id_ = begin_video(client, "long", num_inference_steps=2000).id
    video_until(client, id_, "in_progress")
    client.videos.delete(id_)
    wait_until(lambda: not any(lease.load.running for lease in leases(served, VIDEOS)), "it is given up")
    assert metric(served, VIDEOS, "paint_steps") < 2000


def test_a_video_goes_on_when_its_api_replica_dies(served: Stack, client: OpenAI) -> None:
    """Another replica has it made again: the same bytes."""
    url = replica_of(served, "other")
    ask = {"model": "filmer", "prompt": "a survivor", "seconds": 1, "num_inference_steps": 100}
    video = httpx.post(f"{url}/v1/videos", json=ask).json()
    wait_until(lambda: httpx.get(f"{url}/v1/videos/{video['id']}").json()["progress"], "it is being made")
    stop(served.names["other"], signal.SIGKILL)
    end_state = video_until(client, video["id"], "completed")
    assert client.videos.download_content(end_state.id).content == film("a survivor", video["seed"], 100)


@pytest.mark.parametrize(
    ("body", "param"),
    [({"seconds": 13}, "seconds"), ({"seconds": "soon"}, "seconds"), ({"seconds": "0"}, "seconds"),
     ({"size": "9x9"}, "size"), ({"fps": 0}, "fps"), ({"input_reference": "x"}, "input_reference"),
     ({"model": "painter"}, "model")],
)  # fmt: skip
def test_what_no_video_can_be_is_refused_by_name(served: Stack, body: dict[str, Any], param: str) -> None:
    answer = httpx.post(f"{served.url}/v1/videos", json={"model": "filmer", "prompt": "a cat"} | body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
