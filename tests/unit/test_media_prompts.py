"""Pictures in a conversation's prompt: as templates take them, in their order, each where it belongs."""

import time
from typing import Any

import pytest

from app.dispatch.media.media_reader import Origin, Sample
from app.dispatch.models.models import Model
from app.errors import PromptTooLong, RequestError
from app.media.placeholders import pictures_of
from app.media.placeholders.smolvlm_video import before_frames
from app.messages.media import Frame, Media
from app.openai.media import origins_of, params_of
from app.openai.media_prompt import expanded, markers_of
from app.openai.prompt import chat_prompt
from app.openai.schemas import ChatRequest
from app.schemas.validation import validated
from app.tokenizing.tokenizer import Tokenizer, load_tokenizer
from tests import models
from tests.present import present
from tests.refusals import refused
from tests.vlm import random_vlm

LISTS_ONLY = (
    "{% for m in messages %}{{ m['role'] }}:{% for part in m['content'] %}{% if part['type'] == 'image' %}<image>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}|{% endfor %}"
)
TEXTS_ONLY = "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}|{% endfor %}"


def seen(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def film(url: str) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": url}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def asked(*messages: dict[str, Any], **fields: Any) -> ChatRequest:
    return validated(ChatRequest, {"model": "m", "messages": [*messages], **fields})


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(random_vlm("idefics3", weights=False), None, "file")


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> Model:
    pictures = pictures_of(random_vlm("idefics3", weights=False), tokenizer, {})
    return models.model(tokenizer=tokenizer, pools=(), context_len=4096, pictures=pictures)


def prompt_of(model: Model, template: str, body: ChatRequest) -> str:
    return chat_prompt(model.tokenizer.with_template(template), body.messages, body, markers_of(model, {}))


@pytest.mark.parametrize(("template", "shown"), [
    (LISTS_ONLY, "system:Be brief.|user:a<image>bc<image>|"),
    (TEXTS_ONLY, "system:Be brief.|user:a<image>b\nc<image>|"),
])  # fmt: skip
def test_a_template_gets_pictures_as_it_takes_them(model: Model, template: str, shown: str) -> None:
    """A list of parts, also for messages that are texts if it takes nothing else; or the model's marker in a text."""
    user = {"role": "user", "content": [text("a"), seen("data:1"), text("b"), text("c"), seen("data:2")]}
    assert prompt_of(model, template, asked({"role": "system", "content": "Be brief."}, user)) == shown


@pytest.mark.parametrize("template", [LISTS_ONLY, TEXTS_ONLY])
def test_a_message_is_continued_where_it_ends(model: Model, template: str) -> None:
    user = {"role": "user", "content": [seen("data:1"), text("What?")]}
    body = asked(user, {"role": "assistant", "content": "It is"}, continue_final_message=True)
    assert prompt_of(model, template, body) == "user:<image>What?|assistant:It is"


@pytest.mark.parametrize("template", [LISTS_ONLY, TEXTS_ONLY])
def test_a_video_is_written_as_smolvlms_own_processor_does_it(model: Model, template: str) -> None:
    """Its texts are taken from transformers, the times are those of the frames. A picture beside it stays one."""
    user = {"role": "user", "content": [text("a"), film("data:1"), seen("data:2")]}
    body, origins = asked(user), [Origin("video", "data:1"), Origin("image", "data:2")]
    samples = {
        origins[0]._replace(number=number): Sample(Media("image", "s", (9, 9), frame=Frame(number, 2, at, 83.9)), b"")
        for number, at in enumerate((0.0, 61.9))
    } | {origins[1]: Sample(Media("image", "t", (9, 9)), b"")}
    from transformers.models.smolvlm import processing_smolvlm as own

    video_text = own.DEFAULT_VIDEO_INTRO.format(frame_count="two", video_duration="0:01:23")
    for at in ("00:00", "01:01"):
        video_text += own.FRAME_TIMESTAMP_MESSAGE.format(timestamp=at) + "<image>"
    tokenizer = model.tokenizer.with_template(template)
    rendered_text = chat_prompt(tokenizer, body.messages, body, markers_of(model, samples), samples)
    assert rendered_text == f"user:a{video_text}{own.DEFAULT_MEDIA_OUTTRO}<image>|"
    assert params_of(body.messages) == ["messages.0.content.1", "messages.0.content.2"]
    prompt = model.encode(rendered_text, "messages", add_special_tokens=False)
    _, media, _ = expanded(model, prompt, origins_of(body.messages), samples, "messages")
    assert [(one.sha256, one.frame and one.frame.number) for one in media] == [("s", 0), ("s", 1), ("t", None)]


def test_frames_are_counted_in_words() -> None:
    texts = {count: before_frames([Frame(0, count, 0.0, 1.0)] * count)[0] for count in (1, 8, 19, 20, 64, 100)}
    words = {count: text.split()[7] for count, text in texts.items()}
    assert words == {1: "one", 8: "eight", 19: "nineteen", 20: "twenty", 64: "sixty-four", 100: "100"}


def test_each_picture_is_placed_where_its_part_is(model: Model, tokenizer: Tokenizer) -> None:
    """The places follow the order of the parts; a picture that comes twice has two."""
    pictures = present(model.pictures)
    body = asked(
        {"role": "user", "content": [text("a"), seen("data:1"), seen("data:2")]},
        {"role": "user", "content": "plain"},
        {"role": "user", "content": [seen("data:1"), text("b")]},
    )
    origins = origins_of(body.messages)
    assert params_of(body.messages) == ["messages.0.content.1", "messages.0.content.2", "messages.2.content.0"]
    small, large = Media("image", "s", (112, 112)), Media("image", "l", (50, 300))
    samples = {Origin("image", "data:1"): Sample(small, b""), Origin("image", "data:2"): Sample(large, b"")}
    before = tokenizer.encode(prompt_of(model, TEXTS_ONLY, body), add_special_tokens=False)
    prompt, media, _ = expanded(model, before, origins, samples, "messages")
    assert [one.sha256 for one in media] == ["s", "l", "s"]
    for one in media:
        assert prompt[one.offset : one.offset + one.length] == pictures.tokens(*one.shape)
    rest, last = [], 0
    for one in media:
        rest += [*prompt[last : one.offset], pictures.token_id]
        last = one.offset + one.length
    assert rest + prompt[last:] == before


def test_many_parts_are_named_without_comparing_them() -> None:
    """Nobody has admitted the request yet: comparing each with all others took half a minute for 2,048 of them."""
    parts = [part for number in range(2048) for part in (seen(f"https://a/{number}"), text("b"))]
    body = asked({"role": "user", "content": parts})
    start_s = time.process_time()
    assert params_of(body.messages) == [f"messages.0.content.{place}" for place in range(0, 4096, 2)]
    assert time.process_time() - start_s < 1.0


def test_one_picture_named_very_often_is_refused_before_all_its_tokens_are_made(
    model: Model, tokenizer: Tokenizer
) -> None:
    """The prompt need not fit the context for this: a hundred bytes that name a picture stand for 16,384 tokens."""
    origin = Origin("file", file_id="file-1")
    samples = {origin: Sample(Media("image", "s", (4000, 4000)), b"")}
    prompt = [model.pictures.token_id] * 4000  # type: ignore[union-attr]
    with refused("messages", "more than 262144 tokens", kind=PromptTooLong):
        expanded(model, prompt, [origin] * 4000, samples, "messages")


@pytest.mark.parametrize("words", ["<image>", "an <image> b"])
def test_a_marker_in_a_text_is_no_picture(model: Model, tokenizer: Tokenizer, words: str) -> None:
    """Beside a picture it is refused, else it could take its place; alone it is a text."""
    body = asked({"role": "user", "content": [seen("data:1"), text(words)]})
    samples = {Origin("image", "data:1"): Sample(Media("image", "s", (9, 9)), b"")}
    prompt = tokenizer.encode(prompt_of(model, TEXTS_ONLY, body), add_special_tokens=False)
    with refused("messages", "own sign of a picture"):
        expanded(model, prompt, origins_of(body.messages), samples, "messages")
    assert "<image>" in prompt_of(model, TEXTS_ONLY, asked({"role": "user", "content": words}))


def test_a_template_without_pictures_is_refused(model: Model, tokenizer: Tokenizer) -> None:
    samples = {Origin("image", "data:1"): Sample(Media("image", "s", (9, 9)), b"")}
    with pytest.raises(RequestError, match="shows 0 pictures where there are 1"):
        expanded(model, tokenizer.encode("nothing"), [*samples], samples, "messages")
