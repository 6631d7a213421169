"""Prompts with media whose expansion an engine has told: where these are, and what a real answer corrects."""

from collections.abc import Iterable
from dataclasses import replace as replace_model
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from app.dispatch.media.corrections import Correction, corrections
from app.dispatch.media.expansions import Shown
from app.dispatch.media.media_reader import Learned, Origin, OriginKind, Sample
from app.dispatch.models.models import Model
from app.errors import RequestError
from app.media.picture import picture_of
from app.media.placeholders.places import Place, joined, places
from app.media.refused import Refused
from app.media.video import Frame, Video
from app.messages.media import Media, MediaKind, MediaSign
from app.openai.media import load_media, origins_of
from app.openai.media_prompt import encoded, expanded, markers_of
from app.openai.prompt import chat_prompt
from app.openai.schemas import ChatRequest
from app.schemas.validation import validated
from app.tokenizing.tokenizer import Tokenizer, load_tokenizer
from tests import models
from tests.jobs import job
from tests.refusals import refused
from tests.vlm import random_vlm

ONE, TWO, THREE, FOUR = 1, 2, 3, 4  # so many line feeds
PICTURE, BODY, FILM = 90, 91, 93
KINDS: dict[MediaKind, int] = {"image": PICTURE, "video": FILM}
JOINS = ((ONE, TWO, THREE), (TWO, ONE, THREE), (TWO, TWO, FOUR))  # Gemma 3's
SIGN = MediaSign("image", "d", "<picture>", (PICTURE,), most=100)
A, B = Origin("image", "data:1"), Origin("image", "data:2")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(random_vlm("idefics3", weights=False), None, "file")


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> Model:
    """Its files say nothing of pictures."""
    return models.model(tokenizer=tokenizer, pools=(), context_len=4096)


def sample(name: str, tokens: dict[int, list[int]], sign: MediaSign = SIGN) -> Sample:
    return Sample(Media("image", name, (9, 9)), b"", becomes=Learned(sign, tokens))


def test_a_sign_of_several_tokens_is_found_whole() -> None:
    prompt = [7, 8, 7, 8, 9, 8, 9, 7, 8, 9]
    assert list(places(prompt, {"image": (7, 8, 9)})) == [Place(2, "image"), Place(7, "image")]
    assert next(places(prompt, {"image": (9,), "audio": (7,)})) == Place(0, "audio")
    both = [Place(0, "image"), Place(2, "audio"), Place(7, "audio")]
    assert list(places(prompt, {"image": (7, 8, 7), "audio": (7, 8, 9)})) == [Place(0, "image"), Place(7, "audio")]
    assert list(places(prompt, {"image": (7, 8), "audio": (7, 8, 9)})) == both, "the longer one"


def test_adjacent_tokens_are_joined_one_rule_after_the_other_and_places_move_with_them() -> None:
    tokens = [5, ONE, TWO, BODY, TWO, ONE, 6, TWO, TWO]
    joined_tokens, where = joined(tokens, JOINS)
    assert joined_tokens == [5, THREE, BODY, THREE, 6, FOUR]
    assert where == [0, 1, 1, 2, 3, 3, 4, 5, 5]
    assert joined([ONE, ONE, TWO], JOINS[:1]) == ([ONE, THREE], [0, 1, 1])
    assert joined(tokens, ()) == (tokens, list(range(len(tokens))))


def test_each_picture_is_placed_as_its_engine_expands_it_and_what_the_template_wrote_stays(model: Model) -> None:
    samples = {A: sample("a", {0: [BODY] * 3}), B: sample("b", {0: [BODY, BODY, 92]})}
    prompt, media, template_tokens = expanded(model, [5, PICTURE, 6, PICTURE], [A, B], samples, "messages")
    assert prompt == [5, BODY, BODY, BODY, 6, BODY, BODY, 92]
    assert [(one.sha256, one.offset, one.length) for one in media] == [("a", 1, 3), ("b", 5, 3)]
    assert template_tokens == [5, PICTURE, 6, PICTURE]


def test_a_pictures_own_line_feeds_join_those_of_the_text(model: Model) -> None:
    """The range begins with the joined token and is as long as before, as in vLLM's processor of Gemma 3."""
    sign = MediaSign("image", "d", "<picture>", (PICTURE,), JOINS)
    samples = {A: sample("a", {0: [TWO, BODY, TWO]}, sign)}
    prompt, media, template_tokens = expanded(model, [5, ONE, PICTURE, ONE], [A], samples, "messages")
    assert prompt == [5, THREE, BODY, THREE]
    assert [(one.offset, one.length) for one in media] == [(1, 3)]
    assert template_tokens == [5, ONE, PICTURE, ONE]


def test_pictures_that_the_engine_numbers_are_told_by_their_place(model: Model) -> None:
    sign = MediaSign("image", "d", "<picture>", (PICTURE,), numbered=True)
    samples = {A: sample("a", {0: [80], 1: [81]}, sign)}
    prompt, _, _ = expanded(model, [PICTURE, 5, PICTURE], [A, A], samples, "messages")
    assert prompt == [80, 5, 81]
    with pytest.raises(RequestError, match="can't be shortened"):
        expanded(model, [PICTURE, 5, PICTURE], [A, A], {A: sample("a", {1: [81]}, sign)}, "messages")


async def test_a_picture_that_is_numbered_is_asked_about_a_few_times_however_often_it_is_named(model: Model) -> None:
    """An engine makes n of them to tell about the n'th."""
    sign = MediaSign("image", "d", "<picture>", (PICTURE,), numbered=True)
    questions: list[Shown] = []

    class Known:
        async def signs(self, _pools: object) -> dict[str, MediaSign]:
            return {"image": sign}

        async def look(self, wanted: Iterable[Shown]) -> None:
            questions.extend(wanted)

        async def tokens(self, shown: Shown, _pools: object) -> list[int]:
            return [shown.number]

    class Read:
        expansions = Known()

        async def read(self, _params: object, _asker: object, **_: object) -> dict[Origin, Sample]:
            return {A: Sample(Media("image", "a", (9, 9)), b"", param="messages.0")}

    serving = SimpleNamespace(media=Read(), settings=SimpleNamespace(media_count=8))
    asking: Any = SimpleNamespace(serving=serving, asker=None)
    samples = await load_media(asking, model, [A] * 8, ["messages.0"] * 8)
    assert expanded(model, [PICTURE] * 8, [A] * 8, samples, "messages").prompt == [*range(8)]
    questions.clear()
    with pytest.raises(RequestError, match="takes 8 of them") as error:
        await load_media(asking, model, [A] * 9, ["messages.0"] * 9)
    assert (error.value.param, questions) == ("messages.0", [])


@pytest.mark.parametrize(("template", "written"), [
    ("{% for part in messages[0]['content'] %}{% if part['type'] == 'video' %}<film>{% else %}{{ part['text'] }}"
     "{% endif %}{% endfor %}", "Look.<film>"),
    ("{{ messages[0]['content'] }}", "Look.<film>"),
])  # fmt: skip
def test_a_video_is_shown_as_one_part_or_by_its_sign(model: Model, template: str, written: str) -> None:
    class Signed(Tokenizer):
        def decode(self, ids: Any, **_: Any) -> str:
            return "<film>" if ids == [FILM] else super().decode(ids)

    sign = MediaSign("video", "d", "<film>", (FILM,))
    part = {"type": "video_url", "video_url": {"url": "data:1"}}
    body = validated(
        ChatRequest,
        {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "Look."}, part]}]},
    )
    (origin,) = origins_of(body.messages)
    media = Media("video", "a", (2, 9, 9, 10))
    samples = {origin: Sample(media, b"", becomes=Learned(sign, {0: [BODY] * 3}))}
    signed_tokenizer = load_tokenizer(random_vlm("idefics3", weights=False), None, "file").with_template(template)
    signed_tokenizer.__class__ = Signed
    own = replace_model(model, tokenizer=signed_tokenizer)
    assert chat_prompt(signed_tokenizer, body.messages, body, markers_of(own, samples), samples) == written
    prompt, placements, _ = expanded(own, [5, FILM, 6], [origin], samples, "messages")
    assert prompt == [5, BODY, BODY, BODY, 6]
    assert [(one.kind, one.shape, one.offset, one.length) for one in placements] == [("video", media.shape, 1, 3)]


@pytest.mark.parametrize("kind", ["video", "file"])
async def test_a_second_video_is_refused_where_the_engine_takes_one_also_if_both_are_files(
    model: Model, kind: OriginKind
) -> None:
    """LLaVA-OneVision's engine would die of it."""
    signs = {kind: MediaSign(kind, "d", f"<{kind}>", (at,), alone=at == FILM) for kind, at in KINDS.items()}
    origins = [Origin(kind, f"data:{n}") for n in range(2)]

    class Known:
        async def signs(self, _pools: object) -> dict[MediaKind, MediaSign]:
            return signs

    class Read:
        expansions = Known()

        async def read(self, _params: object, _asker: object, *, whole_videos: bool) -> dict[Origin, Sample]:
            assert whole_videos
            return {one: Sample(Media("video", str(one.url), (2, 9, 9, 10)), b"") for one in origins}

    asking: Any = SimpleNamespace(serving=SimpleNamespace(media=Read()), asker=None)
    with refused("messages.1", "takes no second video"):
        await load_media(asking, model, origins, ["messages.0", "messages.1"])


def test_a_video_whose_pictures_change_their_size_is_refused() -> None:
    frames = [Frame(at, picture_of(side, 4, bytes(12 * side))) for at, side in ((0.0, 4), (1.0, 4), (2.0, 5))]
    assert Video(2.04, frames[:2]).shape == (2, 4, 4, 20)
    assert Video(0.0, frames[:1]).shape == (1, 4, 4, 1)
    assert Video(2.0, frames[:2]).rgb == bytes(96)
    names = {Video(long_s, frames[:n]).sha256 for long_s in (2.0, 3.0) for n in (1, 2)}
    assert len(names) == 4
    others = [Frame(at, picture_of(4, 4, bytes([at] * 48))) for at in (1, 2)]
    orders = [frames[:2], others, others[::-1]]
    assert len({Video(2.0, order).sha256 for order in orders}) == 3, "another video of the same shape is another one"
    with pytest.raises(Refused, match="change their size"):
        _ = Video(2.0, frames).shape


def test_what_pictures_become_may_depend_on_how_many_there_are(model: Model) -> None:
    sign = MediaSign("image", "d", "<picture>", (PICTURE,), counted=True)
    two = Sample(Media("image", "a", (9, 9)), b"", becomes=Learned(sign, {0: [80]}, 2))
    assert expanded(model, [PICTURE, 5, PICTURE], [A, A], {A: two}, "messages").prompt == [80, 5, 80]
    with pytest.raises(RequestError, match="can't be shortened"):
        expanded(model, [PICTURE, 5], [A], {A: two}, "messages")


def test_pictures_that_no_template_shows_are_where_their_engine_puts_them(model: Model) -> None:
    """The places are vLLM's for BLIP-2, and for models whose prompts have to begin with a certain token."""
    sign = MediaSign("image", "d", "", (), first=(4,))
    samples = {A: sample("a", {0: [BODY] * 2}, sign), B: sample("b", {0: [92]}, sign)}
    prompt, media, template_tokens = expanded(model, [4, 5, 6], [A, B], samples, "messages")
    assert (prompt, template_tokens) == ([4, BODY, BODY, 92, 5, 6], [4, 5, 6])
    assert [(one.sha256, one.offset, one.length) for one in media] == [("a", 1, 2), ("b", 3, 1)]
    with pytest.raises(RequestError, match="does not begin"):
        expanded(model, [5, 6], [A], samples, "messages")


def test_a_sign_that_is_a_plain_text_stays_apart_from_what_it_touches(model: Model, tokenizer: Tokenizer) -> None:
    """InternVL's sign is one: beside a space its tokens would be others."""

    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    target, text = ids("<picture>"), "Look: <picture>, and <picture>"
    assert [place.begin for place in places(ids(text), {"image": tuple(target)})] == []
    samples = {A: sample("a", {0: [BODY]}, MediaSign("image", "d", "<picture>", tuple(target)))}
    apart = encoded(model, text, samples, ids)
    assert apart == [*ids("Look: "), *target, *ids(", and "), *target]
    assert expanded(model, apart, [A, A], samples, "messages").prompt == [*ids("Look: "), BODY, *ids(", and "), BODY]
    assert encoded(model, text, {}, ids) == ids(text)


def test_a_sign_in_a_text_is_no_picture(model: Model) -> None:
    with pytest.raises(RequestError, match="own sign of a picture, '<picture>'"):
        expanded(model, [PICTURE, PICTURE], [A], {A: sample("a", {0: [BODY]})}, "messages")


def test_templates_are_shown_the_engines_marker(model: Model, tokenizer: Tokenizer) -> None:
    (target,) = tokenizer.encode("<image>", add_special_tokens=False)
    sign = MediaSign("image", "d", "<begin><image>", (target,))
    marker = markers_of(model, {A: sample("a", {0: [BODY]}, sign)})["image"]
    assert (marker.text, marker.sign) == ("<begin><image>", "<image>")
    assert not markers_of(model, {})


async def test_a_second_picture_is_refused_by_its_place_where_the_engine_takes_one(model: Model) -> None:
    """The refusal comes before any is fetched: nothing here could fetch one."""

    class Told:
        async def signs(self, _: object) -> dict[str, MediaSign]:
            return {"image": replace(SIGN, alone=True)}

    asking: Any = SimpleNamespace(serving=SimpleNamespace(media=SimpleNamespace(expansions=Told())))
    with refused("b", "'b': the model 'm' takes no second picture"):
        await load_media(asking, model, [A, B], ["a", "b"])


def test_a_real_answer_corrects_what_its_only_picture_becomes() -> None:
    samples = {A: sample("a", {0: [BODY] * 3})}
    picture_job = job([5, BODY, BODY, BODY, 6], media=[Media("image", "a", (9, 9), 1, 3)])
    results = list(corrections(picture_job, samples, [5, BODY, BODY, 92, BODY, 6]))
    assert results == [Correction(Shown(SIGN, (9, 9)), [BODY, BODY, 92, BODY])]
    assert list(corrections(picture_job, samples, [4, BODY, 6])) == [Correction(Shown(SIGN, (9, 9)), None)]


def test_of_several_pictures_each_is_asked_about_again() -> None:
    samples = {A: sample("a", {0: [BODY]}), B: Sample(Media("image", "b", (8, 8)), b"")}
    media = [Media("image", "a", (9, 9), 0, 1), Media("image", "b", (8, 8), 1, 1)]
    (correction,) = corrections(job([BODY, 7], media=media), samples, [BODY, BODY, 7])
    assert correction == Correction(Shown(SIGN, (9, 9)), None)
