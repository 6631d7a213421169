"""Places at which long sounds are cut."""

from itertools import pairwise

import numpy as np
import pytest

from app.media.sound import RATE, container_of, decode_sound
from app.media.windows import Loudness, windows
from tests.speech.samples import quiet, tone, wav

MOST = 30 * RATE


def speech(*parts: float) -> np.ndarray:
    """Noise of so many seconds, and silence where it is negative."""
    noise = np.random.default_rng(1)
    return np.concatenate(
        [noise.normal(0, 0.1 if s > 0 else 1e-5, int(abs(s) * RATE)).astype("f4") for s in parts]
    )  # fmt: skip


def cuts(samples: np.ndarray) -> list[float]:
    spans = windows(Loudness(samples), MOST)
    assert spans[0][0] == 0
    assert spans[-1][1] == len(samples)
    assert all(a[1] == b[0] for a, b in pairwise(spans))
    assert all(0 < end - start <= MOST for start, end in spans)
    return [end / RATE for _, end in spans[:-1]]


def test_what_fits_is_not_cut() -> None:
    """The limit is exact to the sample."""
    assert cuts(speech(30.0)) == []
    assert len(cuts(speech(30.001))) == 1


def test_a_long_sound_is_cut_within_its_last_pause() -> None:
    """Each window has its own."""
    assert cuts(speech(18, -1, 8, -1, 18, -1, 20)) == [pytest.approx(27.5, abs=0.5), pytest.approx(46.5, abs=0.5)]


def test_without_a_pause_it_is_cut_where_it_is_quietest() -> None:
    """Noise that falls and rises."""
    samples = speech(50.0) * (1 - 0.5 * np.exp(-((np.arange(50 * RATE) / RATE - 22) ** 2))).astype("f4")
    assert cuts(samples)[0] == pytest.approx(22, abs=1)


def test_no_scrap_is_left_for_the_last_window() -> None:
    """Whisper guesses at scraps."""
    assert 31 - cuts(speech(31.0))[-1] >= 5


def test_what_is_silent_is_known() -> None:
    """A click is none."""
    samples = speech(-40.0)
    assert Loudness(samples).is_silent(0, len(samples))
    samples[5 * RATE : 5 * RATE + 400] = 0.5
    loudness = Loudness(samples)
    assert not loudness.is_silent(0, 10 * RATE)
    assert loudness.is_silent(10 * RATE, 20 * RATE)


def test_any_length_is_cut_into_windows_that_fit() -> None:
    """Down to a sample."""
    for length in (1, 319, 320, 321, MOST - 1, MOST + 1, MOST + 319, 2 * MOST, 3 * MOST + 17, 241 * RATE):
        cuts(speech(length / RATE))
        cuts(np.zeros(length, "f4"))


def test_windows_of_a_file_are_its_samples() -> None:
    """Silent ones have none."""
    sound_windows = decode_sound(wav(tone(20.0) + quiet(45.0) + tone(20.0)), most_s=120, window_s=30)
    (whole,) = decode_sound(wav(tone(20.0) + quiet(45.0) + tone(20.0)), most_s=120)
    assert sum(one.length for one in sound_windows) == whole.length == 85 * RATE
    assert [bool(one.data) for one in sound_windows].count(False) >= 1
    for one in sound_windows:
        if one.data:
            assert one.data == whole.data[4 * one.start : 4 * (one.start + one.length)]
            assert len(one.sha256) == 64


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"RIFF\0\0\0\0WAVE", "wav"),
        (b"RIFF\0\0\0\0AVI ", None),
        (b"ID3\x04", "mp3"),
        (b"\xff\xfb\x90\x00", "mp3"),
        (b"\xff\xf1\x50\x80", None),  # AAC without a container
        (b"fLaC", "flac"),
        (b"OggS", "ogg"),
        (b"\0\0\0\x20ftypisom", "mov"),
        (b"\x1a\x45\xdf\xa3", "matroska"),
        (b"#EXTM3U", None),
        (b"", None),
    ],
)
def test_a_format_is_told_by_its_first_bytes(head: bytes, name: str | None) -> None:
    """FFmpeg is never asked to guess."""
    assert container_of(head) == name
