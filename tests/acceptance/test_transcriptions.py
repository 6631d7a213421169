"""Speech that becomes text: real processes, the official client, and mock engines, whose text depends on the sound."""

import os
import signal
import time
from array import array
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.acceptance.test_document import declared
from tests.serving import Pools, refused, served_by
from tests.speech.samples import GARDEN, RIVERS, encoded, float_wav, quiet, tone, video, wav
from tests.speech.whisper_like import whisper_like
from tests.stack import Stack, all_free, leases, mock_pool, wait_until

POOL, SCRIPTED, MANY, CHAT = "speech-pool", "scripted-pool", "languages-pool", "chat-pool"
SLOW = {"step_ms": 20.0, "answer_tokens": 40}
SCRIPT = " the first part<|1.50|><|1.80|> the second<|3.00|> the third"


def pools(path: Path) -> Pools:
    """Two that know English, one of them with a script; one that knows languages; two have no worker."""
    english = {"task": "transcribe", "path": str(whisper_like(path / "english", multilingual=False))}
    several = {"task": "transcribe", "path": str(whisper_like(path / "several", multilingual=True))}
    return {
        POOL: mock_pool(model="whisper", **SLOW) | english,
        SCRIPTED: mock_pool(model="scripted", script={"": SCRIPT}) | english,
        MANY: mock_pool(model="many", answer_tokens=8) | several,
        CHAT: mock_pool(),
        "absent-pool": mock_pool(model="absent") | english,
    }


served = served_by(pools, {"w1": POOL, "w2": POOL, SCRIPTED: SCRIPTED, MANY: MANY}, XYLEM_MEDIA_SOUND_S="120")


def post(s: Stack, data: bytes, path: str = "transcriptions", **fields: Any) -> httpx.Response:
    files = {"file": ("sound", data)}
    return httpx.post(f"{s.url}/v1/audio/{path}", data={"model": "whisper"} | fields, files=files, timeout=60)


def text_of(s: Stack, data: bytes, **fields: Any) -> str:
    answer = post(s, data, **fields)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["text"])


def test_the_same_samples_have_the_same_text_and_others_another(served: Stack) -> None:
    """FLAC and WAV keep samples as they are."""
    sound = tone(2.0)
    text = text_of(served, wav(sound))
    assert text
    assert text == text.strip()
    assert text_of(served, encoded(sound, "flac", "flac")) == text
    assert text_of(served, wav(tone(2.0, hz=441.0))) != text
    assert text_of(served, wav(sound), language="en") == text


@pytest.mark.parametrize(
    ("codec", "container"),
    [("aac", "ipod"), ("libmp3lame", "mp3"), ("libopus", "webm"), ("libopus", "ogg"), ("pcm_s24le", "wav"),
     ("alac", "mov")],
)  # fmt: skip
def test_every_usual_format_is_understood(served: Stack, codec: str, container: str) -> None:
    """The content says the format, whatever the file's name is."""
    answer = post(served, encoded(tone(1.0), codec, container, 48_000), response_format="verbose_json").json()
    assert answer["duration"] == pytest.approx(1.0, abs=0.15)


def test_all_formats_tell_the_same_by_the_official_client(client: OpenAI) -> None:
    """The script's times are the engine's."""
    make = client.audio.transcriptions.create
    file = ("garden.flac", GARDEN)
    whole = make(model="scripted", file=file, response_format="verbose_json", timestamp_granularities=["segment"])
    assert whole.segments is not None
    segments = [(one.start, one.end, one.text) for one in whole.segments]
    assert segments == [(0.0, 1.5, " the first part"), (1.8, 3.0, " the second"), (3.0, whole.duration, " the third")]
    assert (whole.language, whole.text) == ("english", "the first part the second the third")
    assert whole.duration == pytest.approx(4.4, abs=0.1)
    assert all(one.avg_logprob < 0 and one.compression_ratio > 0 for one in whole.segments)
    srt = make(model="scripted", file=file, response_format="srt")
    assert srt.startswith(
        "1\n00:00:00,000 --> 00:00:01,500\nthe first part\n\n2\n00:00:01,800 --> 00:00:03,000\nthe second\n\n3\n"
    )
    vtt = make(model="scripted", file=file, response_format="vtt")
    assert vtt.startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nthe first part\n\n00:00:01.800 -->")
    plain = make(model="whisper", file=file)
    assert make(model="whisper", file=file, response_format="text") == f"{plain.text}\n"


def test_a_long_sound_is_several_jobs_on_all_workers_in_order(served: Stack, client: OpenAI) -> None:
    """Whole and streamed, it is the texts of its windows, and their times go on."""
    whole = client.audio.transcriptions.create(model="whisper", file=RIVERS, response_format="verbose_json")
    assert whole.segments is not None
    starts = [one.start for one in whole.segments]
    assert len(starts) == 3
    assert starts == sorted(starts)
    assert [one.end for one in whole.segments] == [*starts[1:], pytest.approx(whole.duration, abs=0.001)]
    assert all(10 < end - start <= 30 for start, end in zip(starts, [*starts[1:], whole.duration], strict=True))
    assert all(timing > 0 for timing in _prefilled(served)), "both workers have listened"
    text = text_of(served, RIVERS)
    with client.audio.transcriptions.create(model="whisper", file=RIVERS, stream=True) as events:
        all_events = list(events)
    assert "".join(e.delta for e in all_events if e.type == "transcript.text.delta") == text
    assert [e.type for e in all_events[:-1]] == ["transcript.text.delta"] * (len(all_events) - 1)
    last = all_events[-1]
    assert last.type == "transcript.text.done"
    assert last.text == text
    assert len(all_events) > 30  # tokens come as they are made, but for those of windows whose turn is later


def _prefilled(s: Stack) -> list[float]:
    return [lease.speeds.prefill_tokens_per_s for lease in leases(s, POOL)]


def test_silence_has_no_text_and_no_job(served: Stack) -> None:
    """Whisper would make something up."""
    wait_until(lambda: not served.redis.keys(f"{served.deployment}:media:*"), "nothing is heard")
    assert text_of(served, wav(quiet(40.0))) == ""
    assert post(served, wav(quiet(1.0)), response_format="srt").text == ""
    assert '"transcript.text.done"' in post(served, wav(quiet(1.0)), stream="true").text
    assert not served.redis.keys(f"{served.deployment}:media:*")


def test_a_worker_killed_amid_a_window_changes_nothing(served: Stack) -> None:
    """Its windows go on elsewhere, after what they had."""
    text = text_of(served, RIVERS)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(text_of, served, RIVERS)
        busy = wait_until(lambda: [le for le in leases(served, POOL) if le.load.running], "a worker is at it")
        os.kill(busy[0].worker.pid, signal.SIGKILL)
        assert future.result(60) == text
    served.worker(POOL, name="w3")
    served.wait_ready(2, "whisper")


def test_a_pool_that_slept_hears_again(served: Stack) -> None:
    """Each worker proves that its engine writes a token of a second of silence, before it is back."""
    text = text_of(served, GARDEN, model="many", language="en")
    for change, asleep in (("sleep", 1), ("wake", 0)):
        answer = httpx.post(f"{served.url}/admin/pools/{MANY}/{change}", json={}, timeout=60)
        assert answer.status_code == 200, answer.text
        wait_until(
            lambda asleep=asleep: [bool(le.state.asleep) for le in leases(served, MANY)] == [bool(asleep)], change
        )  # fmt: skip
    served.wait_ready(1, "many")
    assert text_of(served, GARDEN, model="many", language="en") == text


def test_an_alias_is_answered_by_its_fallback(served: Stack) -> None:
    """The fallback answers while its first model has no worker."""
    text = text_of(served, GARDEN)
    aliases = {"ears": {"primary": "absent", "fallback": "whisper"}}
    httpx.patch(f"{served.url}/admin/aliases", json={"aliases": aliases}).raise_for_status()
    assert text_of(served, GARDEN, model="ears") == text
    assert post(served, GARDEN, model="absent").status_code == 503


def test_a_client_that_leaves_frees_the_workers(served: Stack) -> None:
    """All of its windows end."""
    with (
        httpx.Client(timeout=60) as client,
        client.stream(
            "POST", f"{served.url}/v1/audio/transcriptions", data={"model": "whisper", "stream": "true"},
            files={"file": RIVERS},
        ) as answer,
    ):  # fmt: skip
        next(answer.iter_lines())
    began = time.monotonic()
    wait_until(lambda: all_free(served, POOL), "nothing is left")
    assert time.monotonic() - began < 30


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # one of the client's overloads
def test_translations_need_a_model_that_knows_languages(served: Stack, client: OpenAI) -> None:
    """The language that is heard is found out, unless the request says it."""
    with refused("model", "knows English only"):
        client.audio.translations.create(model="whisper", file=GARDEN)
    assert client.audio.translations.create(model="many", file=GARDEN).text
    transcription = client.audio.transcriptions.create(model="many", file=GARDEN, response_format="verbose_json")
    assert transcription.language in ("english", "german", "french")
    german = client.audio.transcriptions.create(
        model="many", file=GARDEN, response_format="verbose_json", language="de"
    )
    assert german.language == "german"
    for model, language in (("many", "sv"), ("whisper", "de")):
        with pytest.raises(openai.BadRequestError) as wrong:
            client.audio.transcriptions.create(model=model, file=GARDEN, language=language)
        assert wrong.value.param == "language"


@cache
def bad_sounds() -> dict[str, tuple[bytes, str]]:
    """Content, and what the error says."""
    sound = wav(tone(1.0))
    huge = bytearray(wav(tone(0.1)))
    huge[40:44] = b"\xff\xff\xff\x7f"  # says that it has two gigabytes
    slow = bytearray(sound)
    slow[24:28] = (1).to_bytes(4, "little")  # a sample a second
    many = bytearray(sound)
    many[22:24] = (300).to_bytes(2, "little")
    return {
        "nothing": (b"", "no WAV"),
        "text": (b"hello", "no WAV"),
        "html": (b"<html>" * 100, "no WAV"),
        "playlist": (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", "no WAV"),
        "concat": (b"ffconcat version 1.0\nfile /etc/passwd\n", "no WAV"),
        "picture": (b"\x89PNG\r\n\x1a\n" + bytes(100), "no WAV"),
        "elf": (b"\x7fELF" + bytes(100), "no WAV"),
        "midi": (b"MThd" + bytes(100), "no WAV"),
        "video without sound": (video(), "no sound"),
        "head only": (sound[:44], "no sound"),
        "half a head": (sound[:20], "broken"),
        "mp3 that is noise": (b"\xff\xfb" + os.urandom(5000), "broken|no sound|codec"),
        "ogg that is noise": (b"OggS" + os.urandom(5000), "broken|no sound"),
        "flac that is noise": (b"fLaC" + os.urandom(5000), "broken|no sound"),
        "mp4 that is noise": (b"\0\0\0\x18ftypM4A " + os.urandom(5000), "broken|no sound"),
        "webm that is noise": (b"\x1a\x45\xdf\xa3" + os.urandom(5000), "broken|no sound"),
        "wav of another codec": (sound[:20] + b"\x11\x00" + sound[22:], "codec|broken"),
        "no sample rate": (sound[:24] + bytes(4) + sound[28:], "samples a second|broken"),
        "a sample a second": (bytes(slow), "samples a second|longer"),
        "300 channels": (bytes(many), "channels|broken"),
        "longer than allowed": (wav(quiet(121.0)), "longer than 120 s"),
        "bomb": (encoded(quiet(400.0), "flac", "flac"), "longer than 120 s"),
        "long tone at 4 kHz": (wav(tone(31.0), rate=4_000), "longer than 120 s"),
    }


@pytest.mark.parametrize("name", bad_sounds())
def test_bad_sounds_are_refused_by_name(served: Stack, name: str) -> None:
    """The status is 400, about `file`, and the next request is served."""
    data, says = bad_sounds()[name]
    answer = post(served, data)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == "file"
    assert any(part in error["message"] for part in says.split("|")), error["message"]
    assert "/" not in error["message"].replace("M4A)", "")


def test_odd_sounds_are_understood(served: Stack) -> None:
    """Numbers that are none, and a head that promises more than there is."""
    odd = array("f", [float("nan"), float("inf"), -float("inf"), 1e30, *([0.1, -0.1] * 8000)])
    assert text_of(served, float_wav(odd))
    data = bytearray(wav(tone(0.5)))
    data[40:44] = b"\xff\xff\xff\x7f"
    assert text_of(served, bytes(data))
    assert text_of(served, RIVERS[: len(RIVERS) // 2])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": "none"}, "model"),
        ({"model": "mock"}, "model"),
        ({"response_format": "yaml"}, "response_format"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": "2"}, "temperature"),
        ({"stream": "perhaps"}, "stream"),
        ({"stream": "true", "response_format": "srt"}, "stream"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities"),
        ({"timestamp_granularities[]": "hour"}, "timestamp_granularities.0"),
        ({"include[]": "logprobs"}, "include"),
        ({"language": "klingon"}, "language"),
        ({"prompt": "<|translate|>"}, "prompt"),
        ({"prompt": "x" * 5000}, "prompt"),
        ({"chunking_strategy": '{"type": "server_vad"}'}, "chunking_strategy"),
        ({"n": "2"}, "n"),
    ],
)
def test_wrong_fields_are_refused_by_name(served: Stack, fields: dict[str, str], param: str) -> None:
    """The refusal comes before the sound is decoded."""
    answer = post(served, GARDEN, **fields)
    assert answer.status_code in (400, 404), answer.text
    assert answer.json()["error"]["param"] == param


def test_a_file_that_is_too_large_or_missing_is_refused(served: Stack) -> None:
    """The refusal names the file."""
    answer = post(served, bytes(26 * 2**20))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file")
    no_file = httpx.post(f"{served.url}/v1/audio/transcriptions", data={"model": "whisper"}, files={"other": b"x"})
    assert (no_file.status_code, no_file.json()["error"]["param"]) == (400, "file")
    chat = {"model": "whisper", "messages": [{"role": "user", "content": "hi"}]}
    chat_answer = httpx.post(f"{served.url}/v1/chat/completions", json=chat)
    assert chat_answer.status_code == 400
    assert "/v1/audio/transcriptions" in chat_answer.json()["error"]["message"]


def test_answers_are_as_declared(served: Stack) -> None:
    """The declaration is that of /openapi.json."""
    document = httpx.get(f"{served.url}/openapi.json", timeout=60).json()
    for form in ("json", "verbose_json"):
        answer = post(served, GARDEN, response_format=form)
        validator = declared(document, "/v1/audio/transcriptions", "post")
        assert not list(validator.iter_errors(answer.json()))
        assert not validator.is_valid(answer.json() | {"unheard_of": 1})


def test_sounds_are_gone_from_redis_with_their_requests(served: Stack) -> None:
    """The requests' time limits don't matter."""
    text_of(served, GARDEN, timeout="500")
    wait_until(lambda: not served.redis.keys(f"{served.deployment}:media:*"), "they are gone")
