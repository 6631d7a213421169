"""Speech on real vLLM, with a Whisper of two workers, and transformers to compare with."""

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from app.demo_models.model_folder import prepare
from app.demo_models.whisper import NAME, convert
from app.media.sound import decode_sound
from tests.chaos.fleet import Fleet
from tests.speech.samples import GARDEN, RIVERS, quiet, wav
from tests.stack import ROOT, Stack, all_free, leases, wait_until

pytestmark = [
    pytest.mark.media,
    pytest.mark.timeout(600),
    # transformers and what it imports use what torch and Python have deprecated.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]

POOL = "speech-pool"
SPOKEN = "the children are playing in the garden."  # which the model makes out; of the weather it is less sure


@pytest.fixture(scope="module")
def model() -> Path:
    dest = ROOT / ".xylem/models" / NAME
    prepare(dest, convert)
    return dest


@pytest.fixture(scope="module")
def served(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Loading takes half a minute, so all tests share the workers, which load side by side."""
    env = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    pool = {"model": "whisper-1", "engine": "vllm", "task": "transcribe", "path": str(model), "max_running": 8}
    pools = {POOL: pool | {"args": {"kv_cache_memory_bytes": 2**28}}}
    with Fleet(tmp_path_factory.mktemp("speech") / "fleet", pools, apis=1, workers=2, **env) as f:
        yield f.stack


def transformers_texts(model: str, sounds: list[bytes]) -> list[str]:
    """The texts that transformers writes for these windows of sound."""
    import numpy as np
    import torch
    from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

    from app.tokenizing.tokenizer import load_tokenizer

    whisper = WhisperForConditionalGeneration.from_pretrained(model, dtype=torch.float32)
    extract, tokenizer = WhisperFeatureExtractor.from_pretrained(model), load_tokenizer(Path(model))
    texts = []
    for sound in sounds:
        features = extract(np.frombuffer(sound, "<f4"), sampling_rate=16_000, return_tensors="pt").input_features
        (tokens,) = whisper.generate(features, num_beams=1, do_sample=False, return_timestamps=False)
        texts.append(tokenizer.decode(tokens.tolist()).strip())
    return texts


@pytest.fixture(scope="module")
def wanted(model: Path) -> tuple[str, str]:
    """The two recordings' texts. In a process of its own: in this one, others may have changed torch."""
    windows = [decode_sound(GARDEN, most_s=60)[0], *decode_sound(RIVERS, most_s=120, window_s=30)]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        garden, *rivers = process.submit(transformers_texts, str(model), [w.data for w in windows]).result()
    assert len(rivers) == 3
    return garden, " ".join(rivers)


def test_speech_is_written_down_as_transformers_does(client: OpenAI, wanted: tuple[str, str]) -> None:
    """Word by word, in one window and in three, whole and streamed."""
    assert [client.audio.transcriptions.create(model="whisper-1", file=f).text for f in (GARDEN, RIVERS)] == [*wanted]
    assert wanted[0].endswith(SPOKEN)
    with client.audio.transcriptions.create(model="whisper-1", file=RIVERS, stream=True) as events:
        assert "".join(e.delta for e in events if e.type == "transcript.text.delta") == wanted[1]


def test_times_are_those_of_the_speech(client: OpenAI) -> None:
    """Each segment is a sentence or two; together they last as long as the sound."""
    whole = client.audio.transcriptions.create(model="whisper-1", file=RIVERS, response_format="verbose_json")
    assert whole.segments is not None
    times = [time for one in whole.segments for time in (one.start, one.end)]
    assert times == sorted(times)
    assert 8 < len(whole.segments) < 25
    assert times[0] < 2
    assert whole.duration - 4 < times[-1] <= whole.duration
    assert all(one.end - one.start < 12 and -1 < one.avg_logprob < 0 for one in whole.segments)
    assert "mountains" in whole.segments[0].text + whole.segments[1].text
    assert "Thank you for listening" in whole.segments[-2].text + whole.segments[-1].text
    srt = client.audio.transcriptions.create(model="whisper-1", file=RIVERS, response_format="srt")
    assert srt.count(" --> ") == len(whole.segments)


def test_no_word_is_lost_where_times_are_told(client: OpenAI) -> None:
    """The first window ends amid a sentence, of which Whisper would only tell when it begins."""
    plain = client.audio.transcriptions.create(model="whisper-1", file=RIVERS)
    whole = client.audio.transcriptions.create(model="whisper-1", file=RIVERS, response_format="verbose_json")
    assert whole.segments is not None
    assert _words(whole.text) == _words(plain.text)
    assert "on the banks of a river london paris and cairo" in " ".join(_words(whole.text))
    assert all(after.start - before.end < 1 for before, after in pairwise(whole.segments))
    for form in ("srt", "vtt"):
        output = client.audio.transcriptions.create(model="whisper-1", file=RIVERS, response_format=form)
        lines = [line for line in output.splitlines() if "-->" not in line and not line.isdigit() and line != "WEBVTT"]
        assert _words(" ".join(lines)) == _words(plain.text)


def _words(text: str) -> list[str]:
    """Commas and full stops may differ."""
    return re.findall(r"\w+", text.lower())


def test_a_prompt_guides_what_is_heard(client: OpenAI, wanted: tuple[str, str]) -> None:
    """Whisper takes it for what was said before."""
    prompt = "The weather. What will the weather be like? Is the weather nice today?"
    text = client.audio.transcriptions.create(model="whisper-1", file=GARDEN, prompt=prompt).text
    assert text.endswith(SPOKEN)
    assert text != wanted[0]


def _reserved(s: Stack) -> list[int]:
    """The processes of workers that have windows. Leases say it later."""
    workers = [lease.worker for lease in leases(s, POOL)]
    return [worker.pid for worker in workers if s.redis.hlen(f"{s.deployment}:reservations:{worker.id}")]


def test_a_worker_killed_amid_a_window_changes_nothing(served: Stack, client: OpenAI, wanted: tuple[str, str]) -> None:
    """The other one goes on behind the tokens that have come."""
    text = ""
    with client.audio.transcriptions.create(model="whisper-1", file=RIVERS, stream=True) as events:
        for event in events:
            if event.type == "transcript.text.delta":
                if len(text) < 20 <= len(text + event.delta):
                    os.kill(_reserved(served)[0], signal.SIGKILL)
                text += event.delta
    assert text == wanted[1]
    wait_until(lambda: all_free(served, POOL), "nothing is left")


def test_silence_asks_no_engine_and_faint_noise_does_not_end_it(served: Stack) -> None:
    """One worker is left after the kill."""

    def post(data: bytes) -> httpx.Response:
        return httpx.post(
            f"{served.url}/v1/audio/transcriptions", data={"model": "whisper-1"}, files={"file": data}, timeout=300
        )  # fmt: skip

    assert post(wav(quiet(3.0))).json()["text"] == ""
    scrap = quiet(0.02)
    scrap[0] = 20_000
    with ThreadPoolExecutor(4) as pool:
        assert [answer.status_code for answer in pool.map(post, [wav(scrap)] * 4)] == [200] * 4


def test_times_come_in_pairs_and_never_go_back() -> None:
    """The rules of Whisper's authors, on a vocabulary of 5 words, the end (5), and 10 times from 6 on."""
    import torch

    from app.engines.vllm.times import restrict

    def left(*said: int, likely: int = 0, until: int = 0) -> list[int]:
        logits = torch.zeros(16)
        logits[likely] = 9.0  # nothing else forces a time
        restrict(logits, 6, 5, list(said), until)
        return [token for token in range(16) if logits[token] > float("-inf")]

    words, end = [0, 1, 2, 3, 4], [5]
    assert left(6) == words + end  # after the first time
    assert left(6, 1, likely=1) == [*words, *end, *range(7, 16)]  # within a text
    assert left(6, 1, 9, likely=5) == [*end, *range(9, 16)]  # a text has ended: its end, or the next one's beginning
    assert left(6, 1, 9, 11) == words + end  # a text begins
    assert left(6, 1, 15, 15, 2, likely=2) == words + end  # no time is left
    assert left(6, 1, likely=8) == list(range(7, 16))  # times together are likelier than any word
    assert left(6, 1, 9, 11, until=12) == left(6, 1, 9, 9, until=10) == words  # a text has begun, and is to be heard
    assert left(6, 1, 9, 11, until=11) == words + end  # too little is left
    assert left(6, until=12) == words + end  # nothing may be said at all
    assert left(6, 1, 9, likely=5, until=12) == [*end, *range(9, 16)]  # no other text has begun
