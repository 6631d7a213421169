"""Pictures and videos for a model whose files don't say what they become: its engine is asked, over HTTP and Redis."""

import base64
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI

from tests.media.samples import video
from tests.pictures import asked, png
from tests.serving import refused, served_by
from tests.stack import Stack, indexed_blocks, mock_pool, wait_until

POOL, ODD, SIZE = "decode-pool-a", "odd-pool", 16
MARKER, FILM = "<|endoftext|>", "<|film|>"
SQUARE = 32  # pixels


ARGS = {"max_model_len": 2048, "block_size": SIZE, "picture_marker": MARKER}
served = served_by(
    {POOL: mock_pool(model="sees", video_marker=FILM, **ARGS), ODD: mock_pool(model="odd", dodges=True, **ARGS)}
)


def film(data: bytes) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{base64.b64encode(data).decode()}"}}


def tokens(client: OpenAI, *pictures: bytes, model: str = "sees", text: str = "What is this?") -> int:
    answer = client.chat.completions.create(model=model, messages=asked(*pictures, text=text), max_tokens=4)
    assert answer.usage is not None
    return answer.usage.prompt_tokens


def test_a_pictures_tokens_are_counted_as_the_engine_has_them(served: Stack, client: OpenAI) -> None:
    capable = {one["id"]: one["capabilities"] for one in httpx.get(f"{served.url}/v1/models").json()["data"]}
    assert [(one["pictures"], one["videos"]) for one in (capable["sees"], capable["odd"])] == [
        (True, True),
        (True, False),
    ]
    none = tokens(client)
    assert tokens(client, png(1, 4 * SQUARE, 3 * SQUARE)) == none + 12
    assert tokens(client, png(2, 4 * SQUARE + 1, 3 * SQUARE), png(3, SQUARE, SQUARE)) == none + 15 + 1
    body = {"model": "sees", "messages": asked(png(1, 4 * SQUARE, 3 * SQUARE))}
    assert httpx.post(f"{served.url}/tokenize", json=body).json()["count"] == none + 12
    expansions = served.redis.hgetall(f"{served.deployment}:expansions:mock-{MARKER}")
    assert {field.decode() for field in expansions} == {"image:96x128:0", "image:96x129:0", "image:32x32:0"}


def test_a_second_question_meets_the_pictures_kv(served: Stack, client: OpenAI) -> None:
    before, messages = indexed_blocks(served, POOL), asked(png(11, 320, 320))
    first = client.chat.completions.create(model="sees", messages=messages, max_tokens=4)
    wait_until(lambda: indexed_blocks(served, POOL) > before + 5, "the index has its blocks")
    again = client.chat.completions.create(
        model="sees", messages=[*messages, {"role": "user", "content": "And?"}], max_tokens=4
    )
    assert again.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens // SIZE * SIZE - SIZE


def test_a_video_is_one_medium_of_its_frames_and_its_length(served: Stack, client: OpenAI) -> None:
    """The frames are in order, with a picture beside the video; a video as data and as a file is the same."""
    sign = httpx.post(f"{served.url}/tokenize", json={"model": "sees", "prompt": FILM}).json()["count"]
    none, squares = tokens(client), 4 * 2 * 2 * sign  # a sign of several tokens, for each
    data, picture = video(frames=4, fps=2), asked(png(1, SQUARE, SQUARE))[0]["content"][1]

    def answered(*parts: Any, before: Sequence[Any] = ()) -> Any:
        content = [{"type": "text", "text": "What is this?"}, *parts]
        return client.chat.completions.create(
            model="sees", messages=[*before, {"role": "user", "content": content}], max_tokens=8, seed=1
        )

    before = indexed_blocks(served, POOL)
    first = answered(film(data))
    assert first.usage.prompt_tokens == none + squares
    assert answered(film(data), picture, film(data)).usage.prompt_tokens == none + 2 * squares + 1
    expansions = served.redis.hkeys(f"{served.deployment}:expansions:mock-{FILM}")
    assert [field.decode() for field in expansions] == ["video:4x48x64x20:0"]
    assert (
        httpx.post(
            f"{served.url}/tokenize", json={"model": "sees", "messages": [{"role": "user", "content": [film(data)]}]}
        ).json()["count"]
        == tokens(client, text="") + squares
    )
    wait_until(lambda: indexed_blocks(served, POOL) > before, "the index has its blocks")
    file = client.files.create(file=("a.mp4", data), purpose="user_data")
    again = answered({"type": "file", "file": {"file_id": file.id}})
    assert again.choices[0].message.content == first.choices[0].message.content
    assert again.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens // SIZE * SIZE - SIZE
    slower = answered(film(video(frames=4, fps=1)))
    assert slower.choices[0].message.content != first.choices[0].message.content, "the same frames of a longer time"


@pytest.mark.parametrize("stored", [False, True])
def test_a_video_is_refused_by_a_model_that_takes_pictures_only(client: OpenAI, stored: bool) -> None:
    part = film(data := video(form="mp4", frames=3))
    if stored:
        file = client.files.create(file=("a.mp4", data), purpose="user_data")
        part = {"type": "file", "file": {"file_id": file.id}}
    with refused("messages.0.content.0", "takes no videos"):
        client.chat.completions.create(model="odd", messages=[{"role": "user", "content": [part]}], max_tokens=4)


def test_a_video_that_the_model_cannot_take_is_named(client: OpenAI) -> None:
    large = [{"role": "user", "content": [film(video(frames=8, fps=8, size=(640, 640)))]}]
    with refused("messages.0.content.0", "a video of 8 x 640 x 640 pixels: it has more than 1024"):
        client.chat.completions.create(model="sees", messages=large, max_tokens=4)


def test_a_shape_that_the_model_cannot_take_is_named(client: OpenAI) -> None:
    with refused("messages.0.content.1", "2000 x 2000 pixels: it has more than 1024 squares"):
        tokens(client, png(4, 2000, 2000))


def test_a_narrow_picture_never_reaches_a_processor(client: OpenAI) -> None:
    """One that makes the shorter side 336 pixels took 6 GB for a picture of 3000 x 1."""
    assert tokens(client, png(7, 100, 1)) == tokens(client) + 4
    for width, height in ((101, 1), (2, 400)):
        with refused("messages.0.content.1", "more than 100 times the other"):
            tokens(client, png(8, width, height))


def test_the_models_own_sign_in_a_text_is_refused_beside_a_picture(client: OpenAI) -> None:
    messages = asked(png(5), text=f"this {MARKER} is none")
    with pytest.raises(BadRequestError, match="own sign of a picture"):
        client.chat.completions.create(model="sees", messages=messages, max_tokens=4)


def test_an_answer_says_what_its_engine_had_and_corrects_what_was_known(served: Stack, client: OpenAI) -> None:
    """The engine takes one token more than it says when it is asked."""
    none = tokens(client, model="odd")
    picture = png(6, 2 * SQUARE, 2 * SQUARE)
    assert tokens(client, picture, model="odd") == none + 5
    key = f"{served.deployment}:expansions:mock-{MARKER}"
    wait_until(lambda: served.redis.hget(key, "image:64x64:0").endswith(b"\x05"), "it is corrected")
    assert tokens(client, picture, model="odd") == none + 5
