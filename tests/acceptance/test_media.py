"""Pictures in requests, from the official clients to the mock engine, whose answers depend on each pixel."""

import base64
import io
import json
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from openai import BadRequestError, OpenAI
from PIL import Image

from app.media.picture import picture_of
from tests.batching import answered
from tests.media.samples import video
from tests.pictures import asked, png, url
from tests.serving import Pools, client_of, outlived, refused, replica_of, revive, served_by, standing_still
from tests.stack import (
    Stack,
    indexed_blocks,
    leases,
    mock_pool,
    stop,
    timeline,
    wait_until,
)
from tests.vlm import random_vlm

POOL, TEXT, BLIND = "decode-pool-a", "text-pool", "blind-pool"
SIZE = 16  # tokens of a block
SLOW = {"step_ms": 15.0}


def film(data: bytes) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{base64.b64encode(data).decode()}"}}


def watched(data: bytes) -> list[Any]:
    return [{"role": "user", "content": [{"type": "text", "text": "What happens?"}, film(data)]}]


def pools(_: Path) -> Pools:
    """A model that sees, and one of each kind of blindness. Qwen has no worker."""
    files = str(random_vlm("idefics3", weights=False))
    args = {"max_model_len": 2048, "block_size": SIZE, **SLOW}
    apart = {"path": files, "disagg": {"remote_tokens": 64, "remote_wait_s": 60.0}}
    return {
        POOL: mock_pool(model="sees", **args) | {"path": files},
        TEXT: mock_pool(model="text", **args),
        BLIND: mock_pool(model="blind", media=[], **args) | {"path": files},
        "qwen-pool": mock_pool(model="qwen", **args) | {"path": str(random_vlm("qwen2_vl", weights=False))},
        "prefill-apart": mock_pool(model="apart", **args) | apart | {"role": "prefill"},
        "decode-apart": mock_pool(model="apart", **args) | apart | {"role": "decode"},
    }


WORKERS = {"sees-0": POOL, "sees-1": POOL, **{name: name for name in (TEXT, BLIND, "prefill-apart", "decode-apart")}}
served = served_by(pools, WORKERS, XYLEM_MEDIA_FOLDER="{path}")


def answer(client: OpenAI, messages: list[Any], **fields: Any) -> Any:
    options = {"model": "sees", "seed": 1, "max_tokens": 12} | fields
    return client.chat.completions.create(messages=messages, **options)


def test_one_picture_is_the_same_in_each_api(served: Stack, client: OpenAI) -> None:
    """The answer is the picture's, and its placeholders are counted: four tiles and the whole, in this model's way."""
    data, other = png(1), png(2)
    chat = answer(client, asked(data))
    text = chat.choices[0].message.content
    assert text != answer(client, asked(other)).choices[0].message.content
    assert text == answer(client, asked(data)).choices[0].message.content
    parts = [{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": url(data)}]
    response = client.responses.create(
        model="sees", input=[{"role": "user", "content": parts}], max_output_tokens=12, store=False
    )
    with Anthropic(base_url=served.url, api_key="none", max_retries=0) as anthropic:
        source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(data).decode()}
        blocks = [{"type": "text", "text": "What is this?"}, {"type": "image", "source": source}]
        turns: Any = [{"role": "user", "content": blocks}]
        message = anthropic.messages.create(model="sees", max_tokens=12, messages=turns)
        count = anthropic.messages.count_tokens(model="sees", messages=turns)
    tokens = chat.usage.prompt_tokens
    assert response.usage is not None
    read = message.usage.cache_read_input_tokens or 0  # Anthropic counts them apart
    assert response.usage.input_tokens == message.usage.input_tokens + read == count.input_tokens == tokens
    assert len(response.output_text) > 0
    assert tokens > 5 * 16


def test_a_second_question_finds_the_picture_in_the_cache(served: Stack, client: OpenAI) -> None:
    """Another picture of the same size is not found: its blocks have their own hash."""
    before = indexed_blocks(served, POOL)
    messages = asked(png(11), text="Look.")
    first = answer(client, messages).usage
    wait_until(lambda: indexed_blocks(served, POOL) > before, "the index has its blocks")
    more = [*messages, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And what is it?"}]
    again = answer(client, more).usage
    assert again.prompt_tokens_details.cached_tokens >= first.prompt_tokens // SIZE * SIZE - SIZE
    other = answer(client, asked(png(12), text="Look.")).usage
    assert other.prompt_tokens == first.prompt_tokens
    assert other.prompt_tokens_details.cached_tokens <= SIZE, "no more than the text before the picture"


def test_a_response_goes_on_from_one_with_a_picture(client: OpenAI) -> None:
    """The items of the earlier one have it, for clients and for the model."""
    look: Any = [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": url(png(15))}]
    first = client.responses.create(model="sees", input=[{"role": "user", "content": look}], max_output_tokens=8)
    item: Any = client.responses.input_items.list(first.id).data[0]
    assert (item.content[1].type, item.content[1].image_url) == ("input_image", url(png(15)))
    again = client.responses.create(model="sees", input="And?", previous_response_id=first.id, max_output_tokens=8)
    assert first.usage is not None
    assert again.usage is not None
    assert again.usage.input_tokens > first.usage.input_tokens
    assert again.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens // SIZE * SIZE - SIZE
    bad_content: Any = [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]
    with refused("input.0.content.0"):
        client.responses.create(
            model="sees", previous_response_id=first.id, input=[{"role": "user", "content": bad_content}]
        )


def test_pixels_are_in_redis_and_nowhere_in_celery(served: Stack, client: OpenAI) -> None:
    """The pixels are there while the request is in progress, however long it may take."""
    data = png(21)
    chunks = answer(client, asked(data), stream=True, max_tokens=400, timeout=80_000, extra_body={"ignore_eos": True})
    next(chunks)
    with Image.open(io.BytesIO(data)) as image:
        picture = picture_of(image.height, image.width, image.convert("RGB").tobytes())
    key = f"media:media:{picture.sha256}"
    assert served.redis.get(key) == picture.rgb
    assert 0 < served.redis.ttl(key) <= 300
    chunks.close()
    wait_until(lambda: not served.redis.keys("media:media:*"), "they are gone")


@pytest.mark.parametrize("messages", [asked(png(31), png(32)), watched(video(frames=20))], ids=["pictures", "video"])
def test_an_answer_goes_on_elsewhere_when_its_worker_is_killed(
    served: Stack, client: OpenAI, messages: list[Any]
) -> None:
    """The pictures are the same: the answer is the one that an undisturbed worker gives."""
    fields: dict[str, Any] = {"max_tokens": 120, "extra_body": {"ignore_eos": True}}
    whole = answer(client, messages, **fields).choices[0].message.content
    assert outlived(served, POOL, answer(client, messages, stream=True, **fields))[0] == whole
    revive(served)


def test_a_kept_answer_is_continued_by_another_replica(served: Stack, client: OpenAI) -> None:
    """Its media aren't fetched again: the replica knows their hashes, and the video's times; pixels are in Redis."""
    messages = [*watched(video(frames=20)), *asked(png(41))]
    base = replica_of(served, "dying")
    body = {
        "model": "sees", "messages": messages, "max_tokens": 150, "seed": 3, "stream": True, "ignore_eos": True,
    }  # fmt: skip
    whole = answer(client, messages, max_tokens=150, seed=3, extra_body={"ignore_eos": True})
    reference = whole.choices[0].message.content
    headers = {"x-xylem-resumable": "1"}
    text, last = "", ""
    with (
        httpx.Client(timeout=60) as http,
        http.stream("POST", f"{base}/v1/chat/completions", json=body, headers=headers) as events,
    ):
        for line in events.iter_lines():
            if line.startswith("id: "):
                last = line[4:]
            elif line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
            if len(text) > 60 and not line:
                break
        served.names["dying"].send_signal(signal.SIGKILL)
    with httpx.Client(timeout=60) as http:
        rest = http.post(f"{served.url}/v1/chat/completions", json=body, headers={"last-event-id": last})
    for line in rest.text.splitlines():
        if line.startswith("data: {"):
            text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
    assert text == reference


def test_an_answer_is_the_same_aside_in_a_batch_and_with_the_prompt_computed_elsewhere(
    served: Stack, client: OpenAI
) -> None:
    """The picture goes the whole way with its job; a batch's line is parsed as a request is."""
    messages = [*asked(png(45)), *watched(video(frames=20))]
    body: dict[str, Any] = {"model": "sees", "seed": 1, "max_tokens": 12, "messages": messages}
    reference = client.chat.completions.create(**body).choices[0].message.content
    assert client.chat.completions.create(**body, service_tier="flex").choices[0].message.content == reference
    apart = client.chat.completions.create(**body | {"model": "apart"})
    assert apart.choices[0].message.content == reference
    assert len(timeline(served, apart.id)["workers"]) == 2, "one computed the prompt, another one answered"
    served.worker("batch", "batch")
    (completion,) = answered(client, [body])[1]
    assert completion["choices"][0]["message"]["content"] == reference


def test_a_file_of_ones_own_may_be_the_picture(client: OpenAI) -> None:
    data = png(51)
    file = client.files.create(file=("a.png", data), purpose="vision")
    by_file: list[Any] = [
        {"role": "user", "content": [
            {"type": "text", "text": "What is this?"}, {"type": "file", "file": {"file_id": file.id}},
        ]}
    ]  # fmt: skip
    chat = answer(client, by_file)
    assert chat.choices[0].message.content == answer(client, asked(data)).choices[0].message.content
    by_file[0]["content"][1]["file"]["file_id"] = "file-0"
    with refused("messages.0.content.1"):
        answer(client, by_file)


def test_only_different_pictures_count_for_the_bound(client: OpenAI) -> None:
    assert answer(client, asked(*[png(52)] * 9)).choices[0].message.content
    with refused("messages.0.content.10", "at most 8 pictures"):
        answer(client, asked(png(0), *(png(i) for i in range(9))))
    files = [{"type": "file", "file": {"file_id": f"file-{i}"}} for i in range(9)]
    with pytest.raises(BadRequestError, match="at most 8 pictures"):  # before any of them is looked for
        answer(client, [{"role": "user", "content": files}])


def test_a_video_is_the_same_by_url_as_data_and_as_a_file(served: Stack, client: OpenAI) -> None:
    """Its frames are pictures of the prompt, with their times; a second question finds them in the cache."""
    data, before = video(), indexed_blocks(served, POOL)
    path = Path(served.env["XYLEM_MEDIA_FOLDER"]) / "a.mp4"
    path.write_bytes(data)
    file = client.files.create(file=("a.mp4", data), purpose="user_data")
    first = answer(client, watched(data))
    wait_until(lambda: indexed_blocks(served, POOL) > before, "the index has its blocks")
    tokens = first.usage.prompt_tokens
    assert tokens > 8 * 5 * 16, "of each of eight frames four tiles and the whole"
    for part in (
        {"type": "video_url", "video_url": {"url": path.as_uri()}},
        {"type": "file", "file": {"file_id": file.id}},
    ):
        chat = answer(client, [{"role": "user", "content": [{"type": "text", "text": "What happens?"}, part]}])
        assert chat.choices[0].message.content == first.choices[0].message.content
        assert chat.usage.prompt_tokens == tokens
        assert chat.usage.prompt_tokens_details.cached_tokens >= tokens // SIZE * SIZE - SIZE
    again = [*watched(data), {"role": "assistant", "content": "Light."}, {"role": "user", "content": "And then?"}]
    assert answer(client, again).usage.prompt_tokens_details.cached_tokens >= tokens // SIZE * SIZE - 2 * SIZE
    other = answer(client, watched(video(fps=11)))
    assert other.choices[0].message.content != first.choices[0].message.content, "the same frames at other times"
    count = httpx.post(f"{served.url}/tokenize", json={"model": "sees", "messages": watched(data)}, timeout=60)
    assert count.json()["count"] == tokens


@pytest.mark.parametrize(("model", "part", "param", "says"), [
    ("text", {"type": "image_url", "image_url": {"url": url(png(1))}}, "messages.0.content.1", "takes no pictures"),
    ("blind", {"type": "image_url", "image_url": {"url": url(png(1))}}, "messages.0.content.1",
     "'messages.0.content.1': this model's engines take no pictures"),
    ("sees", {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, "messages.0.content.1",
     "takes no sound"),
    ("sees", {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, "messages.0.content.1",
     "broken"),
    ("text", film(b""), "messages.0.content.1", "takes no videos"),
    ("blind", film(video(frames=3)), "messages.0.content.1", "take no pictures"),
    ("sees", film(video()[:-200]), "messages.0.content.1", "broken or incomplete video"),
    ("sees", film(video(frames=121, fps=1)), "messages.0.content.1", "XYLEM_MEDIA_VIDEO_S"),
    ("sees", film(png(1)), "messages.0.content.1", "no MP4 or WebM"),
    ("sees", {"type": "video_url", "video_url": {"url": url(png(1))}}, "messages.0.content.1", "says image/"),
    ("sees", {"type": "video_url", "video_url": {"url": "https://127.0.0.1/a.mp4"}}, "messages.0.content.1", "address"),
    ("sees", {"type": "input_video", "input_video": {}}, "messages.0.content.1.type", "input_video"),
])  # fmt: skip
def test_what_cannot_be_seen_is_refused_by_name(
    client: OpenAI, model: str, part: dict[str, Any], param: str, says: str
) -> None:
    content = [{"type": "text", "text": "What is this?"}, part]
    with refused(param, says):
        answer(client, [{"role": "user", "content": content}], model=model)


def test_a_model_is_said_to_see_if_its_workers_do(client: OpenAI) -> None:
    """One without a worker: if its family does."""
    capabilities = {model.id: (model.model_extra or {})["capabilities"]["pictures"] for model in client.models.list()}
    assert capabilities == {"sees": True, "text": False, "blind": False, "qwen": True, "apart": True}


def test_a_file_that_is_a_video_is_refused_where_only_a_picture_may_be(client: OpenAI) -> None:
    file = client.files.create(file=("a.webm", video(form="webm", frames=3)), purpose="user_data")
    look: Any = [{"role": "user", "content": [{"type": "input_image", "file_id": file.id, "detail": "auto"}]}]
    with refused("input.0.content.0", "none of JPEG"):
        client.responses.create(model="sees", input=look)


def test_a_text_with_the_models_own_sign_of_a_picture_is_refused_beside_one(client: OpenAI) -> None:
    """The sign in the text would get the pixels."""
    with pytest.raises(BadRequestError, match="<image>"):
        answer(client, asked(png(1), text="An <image>"))


def test_lost_pixels_are_written_anew(served: Stack, client: OpenAI) -> None:
    """Redis loses them after the request was placed, and before its worker looks."""
    with ThreadPoolExecutor(1) as threads:
        with standing_still(*(lease.worker.pid for lease in leases(served, POOL))):
            waiting = threads.submit(answer, client, asked(png(61)))
            wait_until(lambda: served.redis.keys("media:request:*"), "it is placed", every_s=0.01)
            served.redis.delete(*served.redis.keys("media:media:*"))
        chat = waiting.result()
    assert chat.choices[0].message.content == answer(client, asked(png(61))).choices[0].message.content


def test_pixels_that_were_lost_with_their_replica_are_read_again_by_the_one_that_adopts_the_answer(
    served: Stack, client: OpenAI
) -> None:
    """A replica that dies between the request's record and its pixels leaves it so, as does Redis that dies with it."""
    base = replica_of(served, "owner")
    look: Any = [
        {"role": "user", "content": [{"type": "input_image", "image_url": url(png(63)), "detail": "auto"},
                                     {"type": "input_text", "text": "What is it?"}]}
    ]  # fmt: skip
    fields: Any = {"model": "sees", "input": look, "max_output_tokens": 16, "extra_body": {"seed": 1}}
    with standing_still(*(lease.worker.pid for lease in leases(served, POOL))):
        with client_of(base) as first:
            response = first.responses.create(**fields, background=True)
        wait_until(lambda: served.redis.keys("media:request:*"), "it is placed", every_s=0.01)
        stop(served.names["owner"], signal.SIGKILL)
        served.redis.delete(*served.redis.keys("media:media:*"))
    going = ("queued", "in_progress")
    over = wait_until(lambda: (r := client.responses.retrieve(response.id)).status not in going and r, "its end", 60)
    assert (over.status, over.output_text) == ("incomplete", client.responses.create(**fields).output_text)
