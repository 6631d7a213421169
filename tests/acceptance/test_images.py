"""Pictures: real processes, the official client, and mock engines whose pictures are of one colour."""

import io
import os
import signal
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from celery import Celery
from openai import OpenAI
from PIL import Image

from app.media.picture import picture_of
from app.messages.job import Painting
from app.painters.mock import picture
from tests.acceptance.test_security import create
from tests.batching import answered, lines_of
from tests.serving import client_of, revive, served_by, serving
from tests.stack import Stack, all_free, leases, metric, pid_of_worker, timeline, wait_until

POOL, STEP_MS = "image-pool", 20.0
RULES = {"size": "64x64", "sizes": ["32x32", "64x32", "96x64"], "max_pixels": 4096, "steps": 4, "max_steps": 2000}
RULES["quality_steps"] = {"low": 2, "high": 6}


PAINTER: dict[str, Any] = {
    "model": "painter", "engine": "mock", "task": "image", "max_running": 4, "painting": RULES,
    "args": {"step_ms": STEP_MS, "dies_on": "a fatal picture"},
}  # fmt: skip
served = served_by(
    {POOL: PAINTER}, {"batch": "batch", "w1": POOL, "w2": POOL},
    XYLEM_MEDIA_STORE="{path}/media", XYLEM_MEDIA_KEEP_S="3600",
)  # fmt: skip


def made(prompt: str, seed: int, step: int = 4, **more: Any) -> bytes:
    """The picture that the engine paints."""
    return picture(Painting(**{"width": 64, "height": 64, "steps": 4} | more, prompt=prompt, seed=seed), step)


def post(s: Stack, **body: Any) -> httpx.Response:
    return httpx.post(f"{s.url}/v1/images/generations", json={"model": "painter", "prompt": "a cat"} | body, timeout=60)


def steps(s: Stack) -> float:
    return metric(s, POOL, "paint_steps")


def idle(s: Stack) -> bool:
    return all(not lease.load.running for lease in leases(s, POOL)) and all_free(s, POOL)


def test_n_pictures_have_n_seeds_and_each_paints_the_same_again(client: OpenAI) -> None:
    """The seed of the request is the first picture's."""
    ask: Any = {"model": "painter", "prompt": "a cat", "extra_body": {"seed": 7}}
    three = client.images.generate(n=3, **ask)
    assert three.data is not None
    assert [b64decode(d.b64_json or "") for d in three.data] == [made("a cat", seed) for seed in (7, 8, 9)]
    again = client.images.generate(model="painter", prompt="a cat", extra_body={"seed": 8}).data
    assert again is not None
    assert again[0].b64_json == three.data[1].b64_json


def test_size_steps_guidance_and_negative_prompt_reach_the_engine(client: OpenAI) -> None:
    ask: dict[str, Any] = {"seed": 1, "num_inference_steps": 2, "guidance_scale": 3.5, "negative_prompt": "a dog"}
    response = client.images.generate(
        model="painter", prompt="a cat", size="64x32", output_format="jpeg", output_compression=50, extra_body=ask
    )  # type: ignore[call-overload]
    expected_picture = made(
        "a cat", 1, 2, height=32, steps=2, guidance=3.5, negative="a dog", format="jpeg", quality=50
    )
    assert b64decode(response.data[0].b64_json) == expected_picture
    assert (response.size, response.output_format) == ("64x32", "jpeg")


def test_a_quality_has_the_pools_steps_unless_the_request_has_its_own(client: OpenAI) -> None:
    for quality, steps in (("low", 2), ("high", 6), ("auto", 4)):
        answer = client.images.with_raw_response.generate(
            model="painter", prompt="a cat", quality=quality, extra_body={"seed": 1}
        )  # type: ignore[call-overload]
        assert b64decode(answer.parse().data[0].b64_json) == made("a cat", 1, steps, steps=steps)
        assert "x-xylem-ignored" not in answer.headers
    own = client.images.generate(
        model="painter", prompt="a cat", quality="low", extra_body={"seed": 1, "num_inference_steps": 3}
    )
    assert [b64decode(d.b64_json or "") for d in own.data or ()] == [made("a cat", 1, 3, steps=3)]
    edit = client.images.edit(
        image=("a.png", png()), model="painter", prompt="a cat", quality="high", extra_body={"seed": 1, "strength": 1.0}
    )
    pixels = picture_of(30, 40, Image.new("RGB", (40, 30), "red").tobytes())
    of_six_steps = picture(Painting("a cat", 64, 64, 6, 1, strength=1.0), 6, pixels.sha256)
    assert [b64decode(d.b64_json or "") for d in edit.data or ()] == [of_six_steps]


def test_what_changes_nothing_is_named_in_a_header(client: OpenAI) -> None:
    """A stream has it, too."""
    images = client.images.with_raw_response
    answer = images.generate(model="painter", prompt="a cat", quality="hd", style="vivid", extra_body={"seed": 1})
    assert answer.headers["x-xylem-ignored"] == "quality, style"
    assert b64decode((answer.parse().data or [])[0].b64_json or "") == made("a cat", 1)
    with client.images.with_streaming_response.generate(
        model="painter", prompt="a cat", style="natural", stream=True
    ) as stream:
        assert stream.headers["x-xylem-ignored"] == "style"


def test_the_extension_of_dynamos_clients_says_the_same_as_the_fields(served: Stack) -> None:
    fields = {"seed": 1, "num_inference_steps": 2, "guidance_scale": 3.5, "negative_prompt": "a dog"}
    by_extension, by_fields = post(served, nvext=fields), post(served, **fields)
    assert by_extension.json()["data"] == by_fields.json()["data"]
    assert by_extension.json()["data"] != post(served, seed=1).json()["data"]
    assert post(served, **fields, nvext={"seed": 1}).json()["data"] == by_fields.json()["data"]


def test_a_stream_has_partial_pictures_and_ends_with_the_whole_one(client: OpenAI) -> None:
    events = list(
        client.images.generate(
            model="painter",
            prompt="a cat",
            stream=True,
            partial_images=2,
            extra_body={"seed": 3, "num_inference_steps": 9},
        )
    )
    assert [e.type for e in events] == ["image_generation.partial_image"] * 2 + ["image_generation.completed"]
    assert [b64decode(e.b64_json) for e in events] == [made("a cat", 3, step, steps=9) for step in (3, 6, 9)]
    assert [e.partial_image_index for e in events[:2]] == [0, 1]  # type: ignore[union-attr]


def test_a_url_shows_the_picture_until_it_is_deleted(served: Stack, client: OpenAI) -> None:
    response = client.images.generate(model="painter", prompt="a cat", response_format="url", extra_body={"seed": 5})
    assert response.data is not None
    url = response.data[0].url
    assert url is not None
    assert url.startswith(f"{served.url}/v1/images/file-")
    answer = httpx.get(url)
    assert (answer.content, answer.headers["content-type"]) == (made("a cat", 5), "image/png")
    assert httpx.get(url[:-1] + ("0" if url[-1] != "0" else "1")).status_code == 404
    assert client.files.delete(url.rpartition("/")[2]).deleted
    assert httpx.get(url).status_code == 404
    assert not list((served.directory / "media" / "files").iterdir())


def png(colour: str = "red", size: tuple[int, int] = (40, 30)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "PNG")
    return file.getvalue()


def test_an_edit_begins_from_its_picture(client: OpenAI) -> None:
    """The pixels count: another file of the same picture gives the same."""
    pixels = Image.new("RGB", (40, 30), "red").tobytes()
    expected_pictures = [
        picture(Painting("a cat", 64, 64, 4, seed, strength=0.5), 4, picture_of(30, 40, pixels).sha256)
        for seed in (3, 4)
    ]
    ask: Any = {"model": "painter", "prompt": "a cat", "n": 2, "extra_body": {"seed": 3, "strength": 0.5}}
    for file in (png(), png() + b"more"):
        response = client.images.edit(image=("a.png", file), **ask)
        assert [b64decode(d.b64_json or "") for d in response.data or ()] == expected_pictures
    events = client.images.edit(
        image=("a.png", png()), model="painter", prompt="a cat", stream=True, partial_images=1, extra_body={"seed": 3}
    )
    assert [e.type for e in events] == ["image_edit.partial_image", "image_edit.completed"]


def test_a_mask_and_further_pictures_reach_the_engine(client: OpenAI) -> None:
    """The engine gets pixels: white where the mask is fully transparent."""
    red, blue = (Image.new("RGB", (40, 30), colour) for colour in ("red", "blue"))
    where = Image.new("RGB", (40, 30), "black")
    where.paste("white", (0, 0, 20, 30))
    digests = [picture_of(30, 40, one.tobytes()).sha256 for one in (red, blue, where)]
    painting = Painting("a cat", 64, 64, 4, 3, strength=0.8, masked=True)
    expected_picture = picture(painting, 4, f"{digests[0]} {digests[1]} mask {digests[2]}")
    pictures = [("a.png", png()), ("b.png", png("blue"))]
    response = client.images.edit(
        model="painter", prompt="a cat", image=pictures, mask=("m.png", mask()), extra_body={"seed": 3}
    )
    assert b64decode((response.data or [])[0].b64_json or "") == expected_picture


def mask(size: tuple[int, int] = (40, 30), alpha: int = 0) -> bytes:
    """Its left half has that alpha."""
    image = Image.new("RGBA", size, (9, 9, 9, 1))
    image.paste((9, 9, 9, alpha), (0, 0, size[0] // 2, size[1]))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("files", "fields", "param"),
    [
        ([], {}, "image"),
        ([("image[]", png())] * 9, {}, "image"),
        ([("image", png()), ("mask", mask()), ("mask", mask())], {}, "mask"),
        ([("image", png()), ("mask", mask((30, 40)))], {}, "mask"),
        ([("image", png()), ("mask", mask(alpha=1))], {}, "mask"),
        ([("image", png()), ("mask", b"no picture")], {}, "mask"),
        ([("image", png()), ("picture", png())], {}, "picture"),
        ([("image", b"no picture")], {}, "image"),
        ([("image", png(size=(5000, 5000)))], {}, "image"),
        ([("image", png()), ("mask", png())], {}, "mask"),
        ([("image", png())], {"strength": "2"}, "strength"),
        ([("image", png())], {"num_inference_steps": "1"}, "strength"),
        ([("image", png())], {"n": "many"}, "n"),
        ([("image", png())], {"seed": f"{2**64}"}, "seed"),
        ([("image", png())], {"model": "nobody"}, "model"),
    ],
)
def test_what_cannot_be_edited_is_refused_by_name(
    served: Stack, files: list[tuple[str, bytes]], fields: dict[str, str], param: str
) -> None:
    parts = [(name, ("a.png", file)) for name, file in files] or {"x": (None, "y")}
    form = {"model": "painter", "prompt": "a cat"} | fields
    answer = httpx.post(f"{served.url}/v1/images/edits", data=form, files=parts)
    assert (answer.status_code, answer.json()["error"]["param"]) == (404 if param == "model" else 400, param), (
        answer.text
    )


@pytest.mark.parametrize("path", ["/v1/images/edits", "/v1/videos", "/v1/files", "/v1/audio/transcriptions"])
def test_a_form_names_no_codec(served: Stack, path: str) -> None:
    """Python has some that make texts of no characters, and others that raise what nobody expects."""
    for charset in ("utf-7", "undefined", "punycode"):
        kind = {"content-type": f"multipart/form-data; boundary=x; charset={charset}"}
        answer = httpx.post(f"{served.url}{path}", content=b"--x--\r\n", headers=kind)
        assert answer.status_code == 415, answer.text


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 11}, "n"),
        ({"n": 0}, "n"),
        ({"size": "48x48"}, "size"),
        ({"size": "big"}, "size"),
        ({"size": "96x64"}, "size"),
        ({"num_inference_steps": 2001}, "num_inference_steps"),
        ({"num_inference_steps": 0}, "num_inference_steps"),
        ({"guidance_scale": -1}, "guidance_scale"),
        ({"seed": 2**32}, "seed"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "x" * 32_001}, "prompt"),
        ({"response_format": "gif"}, "response_format"),
        ({"quality": "best"}, "quality"),
        ({"style": "bold"}, "style"),
        ({"nvext": {"annotations": ["a"]}}, "nvext.annotations"),
        ({"nvext": {"seed": -1}}, "nvext.seed"),
        ({"nvext": {"seed": 1}, "seed": 2}, "nvext.seed"),
        ({"nvext": {"num_inference_steps": 2001}}, "num_inference_steps"),
        ({"partial_images": 1}, "partial_images"),
        ({"stream": True, "partial_images": 4}, "partial_images"),
        ({"stream": True, "response_format": "url"}, "response_format"),
        ({"output_compression": 50}, "output_compression"),
        ({"temperature": 1}, "temperature"),
    ],
)
def test_what_the_model_cannot_paint_is_refused_by_name(served: Stack, body: dict[str, Any], param: str) -> None:
    answer = post(served, **body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert param in answer.json()["error"]["message"]


def test_a_model_that_paints_answers_no_chat_and_has_no_tokens(client: OpenAI, served: Stack) -> None:
    with pytest.raises(openai.BadRequestError, match="paints"):
        client.chat.completions.create(model="painter", messages=[{"role": "user", "content": "a cat"}])
    answer = httpx.post(f"{served.url}/tokenize", json={"model": "painter", "prompt": "a cat"})
    assert (answer.status_code, "paints" in answer.text) == (400, True)
    assert [m.id for m in client.models.list()] == ["painter"]


def test_a_client_that_leaves_stops_its_picture_within_a_step(served: Stack, client: OpenAI) -> None:
    """`ops/bench/media` measures how soon; the contract of painters holds the engine to a step."""
    wait_until(lambda: idle(served), "nothing is painted")
    began = steps(served)
    with client.images.generate(
        model="painter", prompt="slow", stream=True, partial_images=3, extra_body={"num_inference_steps": 800}
    ) as stream:
        next(iter(stream))
    wait_until(lambda: idle(served), "the picture is given up")
    assert 200 <= steps(served) - began < 800  # the first preview came after 200


def test_a_deadline_stops_a_picture(served: Stack) -> None:
    answer = post(served, num_inference_steps=2000, timeout=0.3)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    wait_until(lambda: idle(served), "the picture is given up")


def test_a_killed_workers_picture_is_painted_elsewhere_with_equal_bytes(served: Stack) -> None:
    body: dict[str, Any] = {"prompt": "slow", "seed": 11, "num_inference_steps": 150}
    with ThreadPoolExecutor() as pool:
        future = pool.submit(post, served, **body)
        run = wait_until(lambda: running(served), "it is painted")
        os.kill(pid_of_worker(served, POOL, run), signal.SIGKILL)
        answer = future.result()
    assert answer.status_code == 200, answer.text
    (data,) = answer.json()["data"]
    assert b64decode(data["b64_json"]) == made("slow", 11, 150, steps=150)
    assert timeline(served, run)["attempts"] == 2
    revive(served)


def running(s: Stack) -> str | None:
    """The id of a request that an engine has begun."""
    if not any(lease.load.running for lease in leases(s, POOL)):
        return None
    keys = [key.decode() for key in s.redis.keys(f"{s.deployment}:request:img-*")]
    return keys[0].rpartition(":")[2].rpartition(".")[0] if keys else None


def test_pictures_are_lines_of_batches(served: Stack, client: OpenAI) -> None:
    """A line may not ask for a URL."""
    bodies: list[dict[str, Any]] = [{"model": "painter", "prompt": f"picture {i}", "seed": i} for i in range(7)]
    bodies[5]["response_format"], bodies[6]["size"] = "url", "9x9"
    batch, answers = answered(client, bodies, "/v1/images/generations")
    pictures = [b64decode(body["data"][0]["b64_json"]) for body in answers]
    assert pictures == [made(f"picture {i}", i) for i in range(5)]
    assert {e["custom_id"] for e in lines_of(client, batch.error_file_id)} == {"5", "6"}


def test_a_stored_picture_is_its_keys_own_and_expires(valkey_url: str, tmp_path: Path) -> None:
    """A request without its key, or with another one, finds no picture."""
    env = {
        "XYLEM_DEPLOYMENT": "pictures-of",
        "XYLEM_REQUIRE_KEYS": "true",
        "XYLEM_MEDIA_STORE": str(tmp_path / "media"),
    }
    pools = {POOL: {"model": "painter", "engine": "mock", "task": "image", "painting": RULES}}
    with serving(valkey_url, tmp_path, pools, {"worker": POOL}, XYLEM_MEDIA_KEEP_S="2", **env) as s:
        alice, bob = (create(s, [s.url], name) for name in ("alice", "bob"))
        with client_of(s.url, api_key=alice) as client:
            answer = client.images.generate(model="painter", prompt="a cat", response_format="url")
        url = (answer.data or [])[0].url or ""

        def seen(key: str) -> int:
            return httpx.get(url, headers={"Authorization": f"Bearer {key}"}).status_code

        assert (seen(alice), seen(bob), httpx.get(url).status_code) == (200, 404, 401)
        wait_until(lambda: seen(alice) == 404, "it has expired")


def test_flower_is_told_of_a_pictures_steps(served: Stack) -> None:
    """Celery's events say so: each second, and at the last step."""
    app = Celery(broker=served.redis_url)
    app.conf.broker_transport_options = {"global_keyprefix": f"{served.deployment}:"}
    step_texts: list[str] = []

    def progress(event: dict[str, Any]) -> None:
        step_texts.append(event["result"])
        receiver.should_stop = event["result"] == "step 80 of 80"

    with app.connection_for_read() as connection, ThreadPoolExecutor() as pool:
        receiver = app.events.Receiver(connection, handlers={"task-progress": progress})
        future = pool.submit(post, served, prompt="slow", num_inference_steps=80)
        receiver.capture(limit=None, timeout=30)
        assert future.result().status_code == 200
    assert step_texts[-1] == "step 80 of 80"
    assert len(step_texts) > 1
