"""Pictures on real vLLM and SGLang, small models with random weights: the index, the cache, and what is refused.

An engine's expansion of a picture is compared with ours by the token counts: its cache and the index would not agree
else.
"""

import base64
import io
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI
from PIL import Image

from app.kv.blocks import prompt_hashes
from app.media.picture import picture_of
from app.media.placeholders import pictures_of
from app.messages.media import Media
from app.tokenizing.tokenizer import load_tokenizer
from tests.chaos.fleet import Fleet
from tests.media.samples import video
from tests.serving import client_of
from tests.stack import indexed_blocks, wait_until
from tests.vlm import Kind, random_vlm

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(900)]

POOL, SIZE = "decode-pool-a", 32
ENV = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


def served(engine: str, kind: Kind, folder: Any) -> Fleet:
    args: dict[str, Any] = {"max_total_tokens": 8192}
    if engine == "vllm":
        most = {"image": 4, "video": 1} if kind == "qwen2_vl" else {"image": 4}
        args = {
            "dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 2**28, "limit_mm_per_prompt": most,
        }  # fmt: skip
    pool = {
        "model": "sees", "engine": engine, "path": str(random_vlm(kind)), "block_size": SIZE, "max_model_len": 2048,
        "max_running": 8, "args": args,
    }  # fmt: skip
    return Fleet(folder, {POOL: pool}, apis=1, workers=1, **ENV)


@pytest.fixture(
    scope="module",
    params=[
        ("vllm", "idefics3"),
        pytest.param(("vllm", "qwen2_vl"), marks=pytest.mark.media),
        pytest.param(("sglang", "qwen2_vl"), marks=pytest.mark.media),
    ],
    ids="-".join,
)
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Kind, Fleet]]:
    engine, kind = request.param
    with served(engine, kind, tmp_path_factory.mktemp("vlm") / "fleet") as f:
        yield kind, f


def rgb(seed: int, size: tuple[int, int]) -> Image.Image:
    return Image.new("RGB", size, (seed, 255 - seed, 9))


def asked(*pictures: Image.Image) -> list[Any]:
    parts: list[Any] = [{"type": "text", "text": "Look."}]
    for picture in pictures:
        out = io.BytesIO()
        picture.save(out, "PNG")
        data = f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"
        parts.append({"type": "image_url", "image_url": {"url": data}})
    return [{"role": "user", "content": parts}]


def answer(client: OpenAI, messages: list[Any]) -> Any:
    return client.chat.completions.create(model="sees", messages=messages, max_tokens=8, temperature=0)


def test_the_index_has_the_hashes_that_the_api_computes(fleet: tuple[Kind, Fleet]) -> None:
    """All whole blocks of the prompt, also those within the pictures, are found as the worker has them."""
    kind, f = fleet
    s = f.stack
    with client_of(f.urls()[0]) as client:
        pictures = [rgb(1, (200, 60)), rgb(2, (117, 300))]
        before = indexed_blocks(s, POOL)
        usage = answer(client, asked(*pictures)).usage
        prompt, media = expanded(kind, asked(*pictures), pictures)
        assert usage.prompt_tokens == len(prompt)
        blocks = (len(prompt) - 1) // SIZE
        wait_until(lambda: indexed_blocks(s, POOL) >= before + blocks, "the index has its blocks")
        hashes = prompt_hashes(prompt, SIZE, media=media)
        entries = s.redis.hmget(f"{s.deployment}:cached:{POOL}", [hashes[i : i + 8] for i in range(0, len(hashes), 8)])
        assert len(entries) == blocks
        assert all(entries)


def test_a_second_question_meets_the_pictures_kv_and_another_picture_does_not(fleet: tuple[Kind, Fleet]) -> None:
    _, f = fleet
    with client_of(f.urls()[0]) as client:
        messages = asked(rgb(21, (224, 224)))
        first = answer(client, messages)
        more = [*messages, {"role": "assistant", "content": "I do."}, {"role": "user", "content": "And?"}]
        again = answer(client, more).usage
        assert again.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens // SIZE * SIZE - SIZE
        other = answer(client, asked(rgb(220, (224, 224))))
        assert other.usage.prompt_tokens == first.usage.prompt_tokens
        assert other.usage.prompt_tokens_details.cached_tokens < SIZE, "the text before the picture has no whole block"
        assert other.choices[0].message.content != first.choices[0].message.content
        assert answer(client, messages).choices[0].message.content == first.choices[0].message.content


def test_a_video_is_pictures_of_the_prompt_or_one_medium(fleet: tuple[Kind, Fleet]) -> None:
    """Engines expand frames, between their times, as the API does, or tell what they become: they say if it differs."""
    kind, f = fleet
    data = base64.b64encode(video(frames=3, fps=1, size=(256, 192))).decode()
    film = {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{data}"}}
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "Watch."}, film]}]
    with client_of(f.urls()[0]) as client:
        first = answer(client, messages)
        again = answer(client, messages)
    tokens = first.usage.prompt_tokens
    assert tokens > {"idefics3": 3 * 5 * 16, "qwen2_vl": 2 * 7 * 9}[kind], (
        "of frames four tiles and the whole, or of two 7 x 9"
    )
    assert again.usage.prompt_tokens_details.cached_tokens >= tokens // SIZE * SIZE - SIZE
    assert again.choices[0].message.content == first.choices[0].message.content
    assert not any("media_expanded_otherwise" in path.read_text() for path in f.stack.directory.rglob("*.log"))


def expanded(kind: Kind, messages: list[Any], pictures: list[Image.Image]) -> tuple[list[int], list[Media]]:
    """The prompt as the API has to make it, put together here in another way."""
    path = random_vlm(kind)
    tokenizer = load_tokenizer(path, None, "file")
    family = pictures_of(path, tokenizer, {})
    assert family is not None
    parts = [{"type": "image"} if part["type"] == "image_url" else part for part in messages[0]["content"]]
    text = tokenizer.render_chat([{"role": "user", "content": parts}])
    pieces = [[]]
    for token in tokenizer.encode(text, add_special_tokens=False):
        pieces[-1].append(token) if token != family.token_id else pieces.append([])
    prompt, media = pieces[0], []
    for picture, piece in zip(pictures, pieces[1:], strict=True):
        tokens = family.tokens(picture.height, picture.width)
        digest = picture_of(picture.height, picture.width, picture.tobytes()).sha256
        media.append(Media("image", digest, (picture.height, picture.width), len(prompt), len(tokens)))
        prompt = prompt + tokens + piece
    return prompt, media
