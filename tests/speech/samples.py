"""Sounds in the formats that clients send, and some that they should not."""

import io
import math
import struct
import wave
from array import array
from pathlib import Path

import av
from av.audio.frame import AudioFrame

HERE = Path(__file__).parent
GARDEN = (HERE / "garden.flac").read_bytes()
RIVERS = (HERE / "rivers.ogg").read_bytes()
RATE = 16_000


def tone(seconds: float, hz: float = 440.0, loud: float = 0.3) -> "array[int]":
    return array("h", (int(32_000 * loud * math.sin(2 * math.pi * hz * i / RATE)) for i in range(int(seconds * RATE))))


def quiet(seconds: float) -> "array[int]":
    return array("h", bytes(2 * int(seconds * RATE)))


def wav(samples: "array[int]", rate: int = RATE, channels: int = 1) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())
    return out.getvalue()


def float_wav(samples: "array[float]", rate: int = RATE) -> bytes:
    """Numbers as they are, also those that are none."""
    data = samples.tobytes()
    head = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(data), b"WAVE", b"fmt ", 16, 3, 1, rate, 4 * rate, 4, 32,
                       b"data", len(data))  # fmt: skip
    return head + data


def encoded(samples: "array[int]", codec: str, container: str, rate: int = RATE) -> bytes:
    """The samples, encoded by FFmpeg."""
    out = io.BytesIO()
    with av.open(out, "w", format=container) as file:
        stream = file.add_stream(codec, rate=rate, layout="mono")
        form = stream.codec_context.codec.audio_formats[0].name
        resampler = av.AudioResampler(form, "mono", rate)
        fifo = av.AudioFifo()
        frame = AudioFrame("s16", "mono", len(samples))
        frame.sample_rate = RATE
        frame.planes[0].update(samples.tobytes().ljust(frame.planes[0].buffer_size, b"\0"))
        for output_frame in (*resampler.resample(frame), *resampler.resample(None)):
            output_frame.pts = None
            fifo.write(output_frame)
        size = stream.codec_context.frame_size or 1024
        while fifo.samples:
            piece = fifo.read(min(size, fifo.samples))
            assert piece is not None
            file.mux(stream.encode(piece))
        file.mux(stream.encode(None))
    return out.getvalue()


def video() -> bytes:
    """An MP4 file with a picture, and no sound."""
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as file:
        stream = file.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        for _ in range(3):
            file.mux(stream.encode(av.VideoFrame(64, 64, "yuv420p")))
        file.mux(stream.encode(None))
    return out.getvalue()
