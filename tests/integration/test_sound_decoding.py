"""Sounds in decoder processes: what costs too much is refused, and the next one is decoded."""

import math
import re
import struct
from array import array
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec.structs import replace

from app.errors import RequestError
from app.media.limits import MediaLimits
from app.media.loader import MediaLoader
from app.media.sound import decode_sound
from app.settings import Settings
from tests.speech.samples import GARDEN, RATE, RIVERS, encoded, float_wav, tone

Loader = Callable[..., MediaLoader]


@pytest_asyncio.fixture
async def loader(tmp_path: Path) -> AsyncIterator[Loader]:
    loaders: list[MediaLoader] = []

    def make(**changes: float) -> MediaLoader:
        limits = MediaLimits.of(Settings(pools_file=tmp_path / "none"))
        loaders.append(MediaLoader(replace(limits, **changes)))
        return loaders[-1]

    yield make
    for one in loaders:
        await one.close()


def long_wav(size: int) -> bytes:
    """Silence of 4,000 bytes a second: little to send, and four samples to make of each byte."""
    head = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + size, b"WAVE", b"fmt ", 16, 1, 1, 4000, 4000, 1, 8, b"data",
                       size)  # fmt: skip
    return head + b"\x80" * size


async def test_a_long_recording_comes_in_windows(loader: Loader) -> None:
    """Each window has samples and a hash of its own."""
    windows = await loader().load_recording(RIVERS, "file", 30.0)
    assert [one.start for one in windows[1:]] == [one.start + one.length for one in windows[:-1]]
    assert all(len(one.data) == 4 * one.length for one in windows)
    assert len({one.sha256 for one in windows}) == len(windows) == 3


def test_numbers_that_are_no_samples_are_bounded() -> None:
    """An engine would make an answer of its own of infinity, wherever in a long sound it is."""
    odd = array("f", [math.nan, math.inf, -math.inf, 5.0, -5.0, 0.25]) * 200_000
    (sound,) = decode_sound(float_wav(odd), most_s=100.0)
    assert array("f", sound.data).tolist() == [0.0, 1.0, -1.0, 1.0, -1.0, 0.25] * 200_000


def test_a_sound_whose_rate_changes_is_decoded_whole() -> None:
    """MP3 files are cut and joined as they are."""
    parts = [encoded(tone(1.5), "libmp3lame", "mp3", rate) for rate in (44_100, 32_000)]
    (both,) = decode_sound(b"".join(parts), most_s=10.0)
    alone = [decode_sound(part, most_s=10.0)[0].length for part in parts]
    assert both.length == pytest.approx(sum(alone), abs=0.1 * RATE)


@pytest.mark.parametrize(
    ("size", "changes", "says"),
    [
        (96, {"sound_decode_s": 1, "decode_bytes": 2**33}, r"1 s of CPU time \(XYLEM_MEDIA_SOUND_DECODE_S\)"),
        # Which of the two comes first depends on what a page of memory costs the kernel.
        (24, {"decode_bytes": 2**28}, "(more memory than XYLEM_MEDIA_DECODE_BYTES|20 s of CPU time)"),
        (24, {"sound_s": 60.0}, r"longer than 60 s \(XYLEM_MEDIA_SOUND_S\)"),
        (24, {"sound_size": 2**20}, r"more than 1048576 bytes \(XYLEM_MEDIA_SOUND_BYTES\)"),
    ],
)
async def test_what_costs_too_much_is_refused_and_the_next_is_served(
    loader: Loader, size: int, changes: dict[str, float], says: str
) -> None:
    """The error names the bound and the field. `size`: MiB."""
    bounded_loader = loader(**{"sound_s": 1e6, "sound_size": 2**27} | changes)
    with pytest.raises(RequestError) as refusal:
        await bounded_loader.load_recording(long_wav(size * 2**20), "file", 30.0)
    assert re.search(says, refusal.value.message)
    assert refusal.value.param == "file"
    (garden,) = await bounded_loader.load_recording(GARDEN, "file", 30.0)
    assert garden.data
