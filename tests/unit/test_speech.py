"""Prompts for Whisper, and the meaning of its tokens."""

from pathlib import Path
from random import Random

import pytest

from app.dispatch.models.speech import ENCODER_TOKENS, LANGUAGES, Speech, speech_of
from app.engines.base import GenerateRequest, MediaInput, silence
from app.engines.checks import check_sound
from app.errors import RequestError, SettingsError
from app.ids import RunId
from app.messages.job import Sampling
from app.messages.media import Media
from app.openai.transcription.formats import Transcript, as_json, as_text
from app.openai.transcription.request import TranscriptionRequest, TranslationRequest, read_form
from app.openai.transcription.segments import Segment, segments
from app.pools.schema import Pool
from app.tokenizing.tokenizer import load_tokenizer
from tests.jobs import POOL, in_flight, job, placing
from tests.leases import candidate
from tests.models import mock, models_of
from tests.present import present
from tests.refusals import refused
from tests.speech.whisper_like import whisper_like

SPEECH = Speech(
    (100,), {"en": 101, "de": 102}, {"translate": 110, "transcribe": 111}, 120, 119, 121, (7, 8), frozenset()
)
ENGLISH = Speech((100,), {}, {}, 120, 119, 121, (), frozenset())


def words(tokens: list[int]) -> str:
    return "".join(f" {token}" for token in tokens)


def cut(*tokens: int, length_s: float = 10.0) -> list[tuple[float, float, str]]:
    parts = segments(tokens, [], SPEECH, words, 60.0, length_s)
    return [(round(one.start - 60, 3), round(one.end - 60, 3), one.text) for one in parts]


def test_the_prompt_of_a_model_that_knows_languages_names_language_and_task() -> None:
    """OpenAI's multilingual models were trained so: start, language, task, times or none."""
    assert SPEECH.prompt("transcribe", "de", times=False) == [100, 102, 111, 120]
    assert SPEECH.prompt("translate", "de", times=True) == [100, 102, 110, 121]
    assert SPEECH.prompt("transcribe", "en", times=False, context=[1, 2]) == [119, 1, 2, 100, 101, 111, 120]


def test_the_prompt_of_an_english_model_names_neither() -> None:
    """Its tokenizer has the signs, which it never saw."""
    assert ENGLISH.prompt("transcribe", None, times=False) == [100, 120]
    assert ENGLISH.prompt("transcribe", None, times=True) == [100, 121]
    assert ENGLISH.prompt("transcribe", "en", times=False) == [100, 120]
    assert not ENGLISH.translates


def test_what_must_not_be_written_is_held_back() -> None:
    """The sign that would end the telling of times is one of them."""
    assert SPEECH.bias(times=False) == {7: -100.0, 8: -100.0}
    assert SPEECH.bias(times=True) == {7: -100.0, 8: -100.0, 120: -100.0}
    assert ENGLISH.bias(times=False) is None


def test_a_models_files_say_what_it_is(tmp_path: Path) -> None:
    """The vocabulary's signs, and whether the model knows more than English."""
    for multilingual in (False, True):
        folder = whisper_like(tmp_path / str(multilingual), multilingual=multilingual)
        pool = Pool.model_validate({"model": "m", "engine": "vllm", "task": "transcribe", "path": str(folder)})
        tokenizer = load_tokenizer(folder)
        speech = speech_of(pool, tokenizer)
        assert pool.context_len == 448
        assert speech.translates == multilingual
        assert set(speech.languages) == ({"en", "de", "fr"} if multilingual else set())
        assert speech.first_time == tokenizer.raw.token_to_id("<|0.00|>")
        assert speech.is_time(tokenizer.raw.token_to_id("<|30.00|>") or 0)
        assert not speech.is_time(speech.no_times or 0)


def test_another_kind_of_model_is_refused_where_it_would_be_asked() -> None:
    """The mock plays any kind, and takes it."""
    pool = {"model": "m", "engine": "vllm", "task": "transcribe", "path": "app/engines/mock/model"}
    with pytest.raises(SettingsError, match="Whisper"):
        models_of(p=pool)
    speech = present(models_of(p=pool | {"engine": "mock"})["m"].speech)
    assert speech.prompt("transcribe", None, times=True)


def test_an_engine_that_transcribes_refuses_what_would_end_it() -> None:
    """A request has one sound, and nothing else."""
    sound = silence()
    picture = MediaInput(Media("image", "x", (1, 1)), b"rgb")
    for media in ([], [picture], [sound, sound], [sound, picture]):
        with pytest.raises(RequestError, match="one sound"):
            check_sound(GenerateRequest(RunId("r.0"), [1], Sampling(max_tokens=1), media=media), "transcribe")
    check_sound(GenerateRequest(RunId("r.0"), [1], Sampling(max_tokens=1), media=[sound]), "transcribe")
    check_sound(GenerateRequest(RunId("r.0"), [1], Sampling(max_tokens=1), media=[picture]), "generate")


def test_times_around_texts_make_segments() -> None:
    """Times come in pairs, or as one for the end of a text and the beginning of the next."""
    assert cut(1, 2, 121 + 50, 121 + 60, 3, 121 + 100) == [(0, 1, " 1 2"), (1.2, 2, " 3")]
    assert cut(1, 121 + 50, 2, 121 + 100) == [(0, 1, " 1"), (1, 2, " 2")]


def test_a_text_without_a_last_time_lasts_as_long_as_its_window() -> None:
    """The answer was too long, or the model does not know."""
    assert cut(1, 2) == [(0, 10, " 1 2")]
    assert cut(121 + 50, 1) == [(1, 10, " 1")]
    assert cut() == []


def test_times_that_make_no_sense_are_put_in_order() -> None:
    """None goes back, and none is behind the end."""
    assert cut(1, 121 + 100, 121 + 50, 2, 121 + 1500) == [(0, 2, " 1"), (2, 10, " 2")]
    random = Random(17)
    for _ in range(300):
        parts = cut(*(random.choice((1, 2, 121 + random.randrange(1501))) for _ in range(20)), length_s=7.5)
        times = [time for start, end, _ in parts for time in (start, end)]
        assert times == sorted(times)
        assert all(0 <= time <= 7.5 for time in times)


def test_logprobs_of_a_segment_are_the_mean_of_its_words() -> None:
    """Times don't count."""
    parts = segments([1, 2, 121 + 50], [-1.0, -2.0, -9.0], SPEECH, words, 0.0, 10.0)
    assert [one.logprob for one in parts] == [-1.5]


MADE = Transcript(
    "transcribe", "en", 3725.5, 0.0, "Hi & <you> --> me.",
    [Segment(0.0, 1.9996, " Hi & <you>\n--> me.", [1], -0.5), Segment(3661.25, 3725.5, " Bye.", [2])],
)  # fmt: skip


def test_subtitles_have_their_formats() -> None:
    """Hours, milliseconds that are rounded, and nothing in a text that would be read as a time or a tag."""
    assert as_text(MADE, "srt") == (
        "1\n00:00:00,000 --> 00:00:02,000\nHi & <you> -> me.\n\n2\n01:01:01,250 --> 01:02:05,500\nBye.\n"
    )
    assert as_text(MADE, "vtt") == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:02.000\nHi &amp; &lt;you> -> me.\n\n01:01:01.250 --> 01:02:05.500\nBye.\n"
    )
    assert as_text(MADE, "text") == "Hi & <you> --> me.\n"


def test_json_tells_how_much_was_heard() -> None:
    """Seconds are whole, as they are charged elsewhere."""
    assert as_json(MADE, "json") == {"text": MADE.text, "usage": {"type": "duration", "seconds": 3726}}
    whole = as_json(MADE, "verbose_json")
    assert (whole["language"], whole["duration"], whole["segments"][1]["seek"]) == ("english", 3725.5, 366125)


def test_languages_have_one_code_each() -> None:
    """A hundred of them."""
    assert len(LANGUAGES) == len(set(LANGUAGES.values())) == 100


def test_a_forms_texts_become_values() -> None:
    """Only where the field is a number or a switch."""
    form_fields = [("model", "1"), ("temperature", "0.5"), ("stream", "True"), ("timestamp_granularities[]", "segment")]
    body = read_form(TranscriptionRequest, form_fields)
    assert isinstance(body, TranscriptionRequest)
    assert (body.model, body.temperature, body.stream) == ("1", 0.5, True)
    assert body.timestamp_granularities == ["segment"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ([("model", "a"), ("model", "b")], "model"),
        ([("model", "a"), ("temperature", "[" * 20)], "temperature"),
        ([("model", "a"), ("temperature", "9" * 5000)], "temperature"),
        ([("model", "a"), ("temperature", "NaN")], "temperature"),
        ([("model", "a"), ("language", "de")], "language"),
    ],
)
def test_a_forms_wrong_fields_are_named(fields: list[tuple[str, str]], param: str) -> None:
    """Translations have no language."""
    with refused(param):
        read_form(TranslationRequest, fields)


def test_windows_are_spread_over_the_workers_and_weigh_what_is_heard() -> None:
    """Their prompts have two tokens each: by these a worker with ten of them would seem idle."""
    media = [Media("audio", "x", (480_000,), 0, ENCODER_TOKENS)]
    requests = [in_flight(job(name=f"r-{i}", media=media)) for i in range(6)]
    workers = [candidate(name, block_size=32, total_blocks=8192, media=["audio"]) for name in "abc"]
    round_ = placing(requests, {POOL: mock(task="transcribe")}, {POOL: workers})
    places = [round_.decide(one, Random(1), 0)["decode"].placement for one in requests]
    assert sorted(place.worker for place in places) == ["a", "a", "b", "b", "c", "c"]
    assert all(place.tokens == ENCODER_TOKENS + 2 for place in places)
    assert all(place.blocks >= (ENCODER_TOKENS + 2) // 32 for place in places)
