"""Choice of a video's frames, as the video is shown. The files are made here, each frame brighter by 8."""

import gc
import struct
from collections.abc import Sequence
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from app.media.refused import Refused
from app.media.video import Video, decode_video
from tests.media.samples import video

TIMES = [index / 10 for index in range(30)]
AT_THESE = [0.0, 0.4, 0.8, 1.2, 1.5, 1.9, 2.3, 2.7]  # the first of these at or after each eighth of three seconds
MS = Fraction(1, 1000)
CODECS = {"mp4": "libx264", "matroska": "libx264", "webm": "libvpx"}
FAST = {
    "libx264": {"bf": "0"},
    "libvpx": {"deadline": "realtime", "cpu-used": "8"},
    "libsvtav1": {"preset": "10", "g": "32"},
}
BROKEN = "broken or incomplete"


def film(
    form: str = "mp4",
    times: Sequence[float] = TIMES,
    *,
    end: float = 3.0,
    sound_s: float = 0.0,
    every_key: bool = False,
    codec: str = "",
    cut_s: float = 0.0,
    codec_options: dict[str, str] | None = None,
    **options: str,
) -> bytes:
    """One frame at each of the times, the last one until the end, and silence. `every_key`: all frames are called key
    frames. `cut_s`: so much of its beginning is not shown."""
    codec = codec or CODECS[form]
    file = BytesIO()
    with av.open(file, "w", format=form, options=options) as container:
        stream = container.add_stream(codec, rate=10, options=FAST[codec] | (codec_options or {}))
        stream.width, stream.height, stream.pix_fmt = 64, 64 if codec == "libsvtav1" else 48, "yuv420p"
        stream.time_base = stream.codec_context.time_base = MS
        packets = []
        for index, time in enumerate(times):
            grey = Image.new("RGB", (stream.width, stream.height), (8 * index % 256,) * 3)
            frame = av.VideoFrame.from_image(grey).reformat(format="yuv420p")
            frame.pts, frame.time_base = round(time * 1000), MS
            packets += stream.encode(frame)
        packets += stream.encode(None)
        for packet, before, after in zip(packets, times, [*times[1:], end], strict=True):
            packet.duration = round((after - before) / packet.time_base)
            packet.is_keyframe = packet.is_keyframe or every_key
            packet.pts -= round(cut_s / packet.time_base)
            packet.dts -= round(cut_s / packet.time_base)
        if sound_s:
            sound = container.add_stream("aac" if form == "mp4" else "libopus", rate=48_000, layout="mono")
            packets += silence(sound, sound_s)
        for packet in sorted(packets, key=lambda one: one.dts * one.time_base):
            container.mux(packet)
    return file.getvalue()


def silence(stream: Any, long_s: float) -> list[Any]:
    samples = av.AudioFrame.from_ndarray(np.zeros((1, int(48_000 * long_s)), "f4"), format="fltp", layout="mono")
    samples.sample_rate, samples.pts, samples.time_base = 48_000, 0, Fraction(1, 48_000)
    resampler = av.AudioResampler(stream.format.name, "mono", 48_000)
    packets = [packet for frame in resampler.resample(samples) for packet in stream.encode(frame)]
    return packets + stream.encode(None)


def frames_of(data: bytes) -> Video:
    return decode_video(data, pixels=2**20, frames=8, most_s=120)


def seen(found: Video) -> list[tuple[float, int]]:
    """The time at which each frame is shown, and the frame's number, by its grey."""
    return [(round(one.at_s, 1), round(one.picture.rgb[0] / 8)) for one in found.frames]


def usual(times: Sequence[float] = AT_THESE) -> list[tuple[float, int]]:
    return [(time, round(time * 10)) for time in times]


@pytest.mark.parametrize(("matrix", "size", "corners"), [
    ((1, 0, 0, 1), (64, 48), "rbbb"),
    ((0, 1, -1, 0), (48, 64), "brbb"),  # a telephone that is held upright
    ((-1, 0, 0, -1), (64, 48), "bbbr"),
    ((0, -1, 1, 0), (48, 64), "bbrb"),
    ((-1, 0, 0, 1), (64, 48), "brbb"),  # one that films itself, as some store that
    ((1, 0, 0, -1), (64, 48), "bbrb"),
    ((0, 1, 1, 0), (48, 64), "rbbb"),
    ((0, -1, -1, 0), (48, 64), "bbbr"),
    ((0, 1 - 2**-16, -1, 0), (48, 64), "brbb"),  # with what a sine leaves
])  # fmt: skip
def test_a_video_is_turned_as_it_is_shown(matrix: tuple[float, ...], size: tuple[int, int], corners: str) -> None:
    """Its upper left quarter is red, the rest blue."""
    image = Image.new("RGB", (64, 48), "blue")
    image.paste("red", (0, 0, 32, 24))
    file = BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        container.mux(stream.encode(av.VideoFrame.from_image(image)))
        container.mux(stream.encode(None))
    data = bytearray(file.getvalue())
    a, b, c, d = (int(number * 2**16) for number in matrix)
    struct.pack_into(">9i", data, data.index(b"tkhd") + 44, a, b, 0, c, d, 0, 0, 0, 1 << 30)
    decoded_video = frames_of(bytes(data))
    picture = decoded_video.frames[0].picture
    assert ((picture.width, picture.height), decoded_video.shape[1:3]) == (size, size[::-1])
    image = Image.frombytes("RGB", size, picture.rgb)
    ends = [(4, 4), (size[0] - 5, 4), (4, size[1] - 5), (size[0] - 5, size[1] - 5)]
    assert "".join("r" if image.getpixel(at)[0] > 128 else "b" for at in ends) == corners


@pytest.mark.parametrize("form", ["mp4", "matroska", "webm"])
def test_times_count_from_the_first_picture(form: str) -> None:
    """A video may be cut out of a longer one, or its clock may have run before."""
    decoded_video = frames_of(film(form, [20 + time for time in TIMES], end=23.0))
    assert (round(decoded_video.long_s, 1), seen(decoded_video)) == (3.0, usual())


@pytest.mark.parametrize("form", ["mp4", "webm"])
def test_times_are_of_the_pictures_where_sound_is_longer(form: str) -> None:
    decoded_video = frames_of(film(form, sound_s=12.0))
    assert (round(decoded_video.long_s, 1), seen(decoded_video)) == (3.0, usual())


@pytest.mark.parametrize(("form", "sound_s"), [("mp4", 0.0), ("matroska", 0.0), ("webm", 12.0)])
def test_the_last_picture_stands_for_the_rest(form: str, sound_s: float) -> None:
    decoded_video = frames_of(film(form, end=12.0, sound_s=sound_s))
    assert (round(decoded_video.long_s, 1), seen(decoded_video)) == (12.0, usual([0.0, 1.5, 2.9]))


def moov_first(folder: Path, **made: Any) -> bytes:
    with av.open(BytesIO(film(**made))) as source:
        path, stream = folder / "a.mp4", source.streams.video[0]
        with av.open(str(path), "w", options={"movflags": "faststart"}) as container:
            copy = container.add_stream_from_template(stream)
            for packet in source.demux(stream):
                if packet.dts is not None:
                    packet.stream = copy
                    container.mux(packet)
    return path.read_bytes()


@pytest.mark.parametrize("end", [3.0, 12.0], ids=["moving", "still"])
def test_a_video_that_is_cut_off_is_refused(end: float, tmp_path: Path) -> None:
    """A video that ends on a still picture is refused too, and so is one where only sound is missing."""
    files = {form: film(form, end=end) for form in ("mp4", "matroska", "webm")}
    files |= {"moov first": moov_first(tmp_path, end=end), "with sound": film("webm", end=end, sound_s=12.0)}
    for name, data in files.items():
        assert frames_of(data).frames, name
        for percent in (25, 50, 75, 90, 95):
            with pytest.raises(Refused, match=BROKEN):
                frames_of(data[: len(data) * percent // 100])


def test_bytes_behind_a_video_are_no_part_of_it() -> None:
    """Some cameras write their own there."""
    assert seen(frames_of(film() + b"\xff" * 40)) == usual()


@pytest.mark.parametrize("form", ["mp4", "webm"])
def test_what_no_wanted_frame_needs_is_not_decoded(form: str) -> None:
    """Frames are wanted each 2 s, where there are key frames; all others are destroyed."""
    times = [index / 10 for index in range(160)]
    data = bytearray(film(form, times, end=16.0, codec_options={"g": "10", "sc_threshold": "0"}))
    with av.open(BytesIO(bytes(data))) as container:
        packets = [packet for packet in container.demux(video=0) if packet.pts is not None]
        others = [bytes(packet) for packet in packets if packet.pts * packet.time_base % 2]
    for payload in others:
        start = data.index(payload)
        data[start : start + len(payload)] = bytes(len(payload))
    decoded_video = frames_of(bytes(data))
    assert [round(one.at_s, 2) for one in decoded_video.frames] == [2.0 * number for number in range(8)]


@pytest.mark.parametrize("form", ["mp4", "matroska"])
@pytest.mark.parametrize("x264", ["keyint=infinite", "keyint=5:open-gop=1", "keyint=8:intra-refresh=1"])
def test_key_frames_change_nothing_of_what_is_taken(x264: str, form: str) -> None:
    """One alone; some with earlier frames behind them; and those from which pictures come bit by bit, or don't."""
    options = {"x264-params": f"{x264}:bframes=2:scenecut=0"}
    for every_key in (False, True):
        assert seen(frames_of(film(form, every_key=every_key, codec_options=options))) == usual()


def test_frames_that_others_do_not_need_are_shown_behind_a_beginning_that_is_not() -> None:
    """AV1's decoder, told to skip them before it began, never took one."""
    slides = film("mp4", [5.0 * number for number in range(16)], end=80.0, codec="libsvtav1", cut_s=7.0)
    assert [slide for _, slide in seen(frames_of(slides))] == [2, 4, 6, 8, 9, 11, 13, 15]


def test_decoding_leaves_no_threads() -> None:
    """Each frame's scaling had its own until the garbage collector came, of which a decoder process can't have many."""
    threads, data = Path("/proc/self/task"), film()
    gc.collect()
    gc.disable()
    try:
        before = len([*threads.iterdir()])
        assert len(frames_of(data).frames) == 8
        assert len([*threads.iterdir()]) <= before
    finally:
        gc.enable()


def test_a_live_recording_is_as_long_as_its_pictures() -> None:
    """Its header doesn't say it."""
    decoded_video = frames_of(film("webm", live="1"))
    assert (round(decoded_video.long_s, 1), seen(decoded_video)) == (3.0, usual())


def test_a_video_longer_than_its_bound_is_refused_by_its_pictures() -> None:
    data = film(sound_s=12.0)
    assert decode_video(data, pixels=2**20, frames=8, most_s=5).frames
    with pytest.raises(Refused, match="longer than 2 s"):
        decode_video(video(), pixels=2**20, frames=8, most_s=2)
    slide = film(times=[0.0, 1.0], end=120.0, video_track_timescale="600")  # of which floats make a little more
    assert decode_video(slide, pixels=2**20, frames=8, most_s=120).long_s == pytest.approx(120)


def test_of_a_video_longer_than_its_bound_the_rest_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours of a still picture are few bytes, and very many packets."""
    data, read = film(times=[index / 10 for index in range(300)], end=30.0), list[int]()
    monkeypatch.setattr("app.media.video._ticks", lambda shown: read.append(shown.dts) or shown.pts)
    with pytest.raises(Refused, match="longer than 2 s"):
        decode_video(data, pixels=2**20, frames=8, most_s=2)
    assert len(read) < 40
