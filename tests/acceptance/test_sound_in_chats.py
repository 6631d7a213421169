"""Sound in chats, from OpenAI's client to the mock engine, whose answers depend on each sample."""

import base64
from array import array
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI

from tests.batching import answered
from tests.serving import Pools, outlived, refused, revive, served_by
from tests.speech.samples import encoded, quiet, tone, wav
from tests.stack import Stack, indexed_blocks, mock_pool, wait_until
from tests.vlm import random_vlm

POOL, SIZE = "decode-pool-a", 16
TOKENS_PER_S = 25


def pools(path: Path) -> Pools:
    """A model that hears, one whose engine doesn't, and a model of text."""
    files = {"path": str(random_vlm("qwen2_audio", weights=False))}
    args: dict[str, Any] = {"max_model_len": 2048, "block_size": SIZE, "step_ms": 15.0}
    return {
        POOL: mock_pool(model="hears", **args) | files,
        "deaf": mock_pool(model="deaf", media=["image"], **args) | files,
        "text": mock_pool(model="text", **args),
    }


served = served_by(pools, {"hears-0": POOL, "hears-1": POOL, "deaf": "deaf", "text": "text"})


def part(data: bytes, form: str = "wav") -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": form}}


def asked(*parts: dict[str, Any], text: str = "What is this?") -> list[Any]:
    return [{"role": "user", "content": [{"type": "text", "text": text}, *parts]}]


def answer(client: OpenAI, messages: list[Any], **fields: Any) -> Any:
    options = {"model": "hears", "seed": 1, "max_tokens": 12} | fields
    return client.chat.completions.create(messages=messages, **options)


def low(seconds: float) -> "array[int]":
    return tone(seconds, 220.0)


def test_an_answer_is_the_sounds_and_its_tokens_are_counted(served: Stack, client: OpenAI) -> None:
    """The file's format does not matter: equal samples are one sound."""
    first, text = answer(client, asked(part(wav(low(4))))), answer(client, asked())
    content = first.choices[0].message.content
    assert first.usage.prompt_tokens == text.usage.prompt_tokens + 4 * TOKENS_PER_S + len(["bos", "eos"])
    assert answer(client, asked(part(wav(tone(4))))).choices[0].message.content != content
    flac = part(encoded(low(4), "flac", "flac"))  # a file is what its content says
    assert answer(client, asked(flac)).choices[0].message.content == content
    mp3 = answer(client, asked(part(encoded(low(4), "libmp3lame", "mp3"), "mp3")))
    assert 0 <= mp3.usage.prompt_tokens - first.usage.prompt_tokens <= TOKENS_PER_S // 5, "MP3 fills up its frames"
    body = {"model": "hears", "messages": asked(part(wav(low(4))))}
    count = httpx.post(f"{served.url}/tokenize", json=body, timeout=60).json()
    assert count["count"] == first.usage.prompt_tokens


def test_a_response_hears_as_a_chat_does_and_the_next_one_remembers(served: Stack, client: OpenAI) -> None:
    """Its sound is the same one, so the chat's KV is met."""
    parts: list[Any] = [{"type": "input_text", "text": "What is this?"}, part(wav(low(3)))]
    chat = answer(client, asked(part(wav(low(3)))), temperature=0)
    response = client.responses.create(
        model="hears", input=[{"role": "user", "content": parts}], temperature=0, max_output_tokens=12
    )
    assert response.output_text == chat.choices[0].message.content
    assert response.usage is not None
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    (item,) = httpx.get(f"{served.url}/v1/responses/{response.id}/input_items", timeout=60).json()["data"]
    assert [one["type"] for one in item["content"]] == ["input_text", "input_audio"]
    then = client.responses.create(model="hears", input="And?", previous_response_id=response.id, max_output_tokens=4)
    assert then.usage is not None
    assert then.usage.input_tokens > response.usage.input_tokens + 12 - 1, "the sound is in the history"
    bad_messages: Any = [{"role": "user", "content": [parts[0], part(b"no sound")]}]
    with refused("input.0.content.1"):
        client.responses.create(model="hears", input=bad_messages)


def test_a_second_question_finds_the_sound_in_the_cache(served: Stack, client: OpenAI) -> None:
    """A different sound of the same length finds nothing."""
    before = indexed_blocks(served, POOL)
    messages = asked(part(wav(low(10))), text="Listen.")
    first = answer(client, messages).usage
    wait_until(lambda: indexed_blocks(served, POOL) > before, "the index has its blocks")
    more = [*messages, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And what is it?"}]
    again = answer(client, more).usage
    assert again.prompt_tokens_details.cached_tokens >= first.prompt_tokens // SIZE * SIZE - SIZE
    other = answer(client, asked(part(wav(tone(10))), text="Listen.")).usage
    assert other.prompt_tokens == first.prompt_tokens
    assert other.prompt_tokens_details.cached_tokens <= SIZE, "no more than the text before the sound"


def test_an_answer_goes_on_elsewhere_with_its_sound(served: Stack, client: OpenAI) -> None:
    messages = asked(part(wav(low(3))), part(wav(tone(2))))
    fields: dict[str, Any] = {"max_tokens": 120, "extra_body": {"ignore_eos": True}}
    whole = answer(client, messages, **fields).choices[0].message.content
    assert outlived(served, POOL, answer(client, messages, stream=True, **fields))[0] == whole
    revive(served)


def test_a_line_of_a_batch_may_have_a_sound(served: Stack, client: OpenAI) -> None:
    body: dict[str, Any] = {"model": "hears", "seed": 1, "max_tokens": 12, "messages": asked(part(wav(low(1))))}
    reference = client.chat.completions.create(**body).choices[0].message.content
    served.worker("batch", "batch")
    (completion,) = answered(client, [body])[1]
    assert completion["choices"][0]["message"]["content"] == reference


FIRST = "messages.0.content.1"


@pytest.mark.parametrize(("model", "parts", "param", "says"), [
    ("text", [part(wav(low(1)))], FIRST, "takes no sound"),
    ("deaf", [part(wav(low(1)))], FIRST, "take no sound"),
    ("hears", [part(b"<html>")], FIRST, "is no WAV"),
    ("hears", [part(wav(low(1))[:40])], FIRST, "it has no sound|broken or incomplete"),
    ("hears", [{"type": "input_audio", "input_audio": {"data": "%%%%", "format": "wav"}}], FIRST, "base64"),
    ("hears", [part(wav(low(1)), "ogg")], f"{FIRST}.input_audio.format", "wav"),
    ("hears", [part(wav(quiet(31)))], FIRST, "at most 30 s"),
    ("hears", [part(wav(low(0.02)))], FIRST, "too short"),
    ("hears", [part(encoded(quiet(1900), "flac", "flac"))], FIRST, "XYLEM_MEDIA_SOUND_S"),
    ("hears", [part(wav(low(1)))] + [part(wav(low(1 + i / 10))) for i in range(1, 9)], "messages.0.content.9",
     "at most 8"),
    ("hears", [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}], FIRST, "takes no pictures"),
    ("hears", [{"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}], FIRST, "takes no videos"),
])  # fmt: skip
def test_what_cannot_be_heard_is_refused_by_name(
    client: OpenAI, model: str, parts: list[dict[str, Any]], param: str, says: str
) -> None:
    with refused(param, says):
        answer(client, asked(*parts), model=model)


def test_a_model_is_said_to_hear_if_its_workers_do(client: OpenAI) -> None:
    capabilities = {model.id: (model.model_extra or {})["capabilities"]["sound"] for model in client.models.list()}
    assert capabilities == {"hears": True, "deaf": False, "text": False}


def test_a_text_with_the_models_own_sign_of_a_sound_is_refused_beside_one(client: OpenAI) -> None:
    """The sign in the text would get the samples."""
    with pytest.raises(BadRequestError, match="own sign of a sound"):
        answer(client, asked(part(wav(low(1))), text="An <|AUDIO|>"))


def test_a_response_of_a_model_without_ears_is_refused_by_its_part(client: OpenAI) -> None:
    message: Any = {"role": "user", "content": [part(wav(low(1)))]}
    with refused("input.0.content.0", "takes no sound"):
        client.responses.create(model="text", input=[message])
