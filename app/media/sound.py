"""Decodes a sound's bytes to samples. Runs in a decoder process. Needs the packages of the extra `sound`."""

import hashlib
from io import BytesIO
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from app.media.refused import Refused

if TYPE_CHECKING:
    from av import AudioFifo, AudioFrame, AudioResampler
    from av.container import InputContainer

RATE = 16_000  # samples a second
_SAMPLE = 4  # bytes: float32, little-endian
_CODECS = {"aac", "alac", "flac", "mp2", "mp3", "opus", "pcm_alaw", "pcm_mulaw", "vorbis"}
_PCM = ("pcm_u8", "pcm_s16", "pcm_s24", "pcm_s32", "pcm_f32", "pcm_f64")  # in either order of bytes
_FORMATS = "WAV, MP3, FLAC, Ogg, MP4 (M4A) or WebM"
_RATES, _CHANNELS = (4_000, 384_000), 8
_AT_ONCE = 2**20  # samples that are bounded together: frame by frame took a third of the time
_BROKEN_SHARE = 10  # a sound is broken if more than one packet in so many can't be decoded


class Sound(Struct, frozen=True):
    """A sound, or a window of one."""

    start: int  # samples, from the sound's beginning
    length: int  # samples
    data: bytes  # float32 from -1 to 1, mono, RATE a second; of a silent window: nothing
    sha256: str  # of the kind, the shape and the samples; "" of a silent window


def decode_sound(data: bytes, *, most_s: float, window_s: float = 0.0) -> list[Sound]:
    """Decodes a sound whole, or cut where it is quiet into windows of at most `window_s`. Raises: Refused."""
    try:
        import av
        import numpy as np

        from app.media.windows import Loudness, windows
    except ImportError as exc:
        raise Refused(f"this server can't decode sound: it needs the extra 'sound' (no package '{exc.name}')") from exc
    name = container_of(data)
    if name is None:
        raise Refused(f"it is no {_FORMATS} file")
    av.logging.set_level(None)
    try:
        with av.open(BytesIO(data), format=name, options={"protocol_whitelist": ""}) as container:
            samples = np.frombuffer(_samples(container, most_s), "=f4")
    except (Refused, MemoryError):
        raise
    except Exception as exc:  # av raises its own errors, and ValueError, OverflowError and others on broken data
        raise Refused("it is broken or incomplete") from exc
    if not len(samples):
        raise Refused("it has no sound")
    for start in range(0, len(samples), _AT_ONCE):
        _bound(samples[start : start + _AT_ONCE])
    samples = samples.astype("<f4", copy=False)
    if not window_s:
        return [_sound(0, samples)]
    loudness = Loudness(samples)
    cut = windows(loudness, int(window_s * RATE))
    return [
        Sound(start, end - start, b"", "") if loudness.is_silent(start, end) else _sound(start, samples[start:end])
        for start, end in cut
    ]


def container_of(data: bytes) -> str | None:
    """FFmpeg's name for the format, by its first bytes: it would guess, also formats that open other files."""
    if data[:4] in (b"RIFF", b"RF64") and data[8:12] == b"WAVE":
        return "wav"
    if data[4:8] == b"ftyp":
        return "mov"
    if data[:3] == b"ID3" or (data[:1] == b"\xff" and len(data) > 1 and data[1] & 0xE6 in (0xE2, 0xE4)):  # layer 3 or 2
        return "mp3"
    return {b"fLaC": "flac", b"OggS": "ogg", b"\x1a\x45\xdf\xa3": "matroska"}.get(data[:4])


def _samples(container: "InputContainer", most_s: float) -> bytearray:
    """Samples of the first stream of sound: float32, mono. Raises: Refused, and what av raises."""
    import av

    if not container.streams.audio:
        raise Refused("it has no sound")
    stream = container.streams.audio[0]
    _check(stream.codec_context)
    stream.codec_context.thread_count = 1
    packets, failures, mono = 0, 0, _Mono(most_s)
    for packet in container.demux(stream):
        packets += 1
        try:
            frames = packet.decode()
        except av.error.InvalidDataError:
            failures += 1
            continue
        for frame in frames:
            _check(frame)
            mono.add(frame)
    if failures * _BROKEN_SHARE > packets:
        raise Refused("it is broken or incomplete")
    mono.end()
    return mono.samples


class _Mono:
    """Frames of any kind as samples: float32, RATE a second. They are resampled a second at a time: one by one, the
    decoding of a sound took 30 % longer."""

    def __init__(self, most_s: float) -> None:
        self.samples = bytearray()
        self._most_s, self._most = most_s, int(most_s * RATE) * _SAMPLE
        self._kind: tuple[str, str, int] | None = None
        self._queue: AudioFifo
        self._resampler: AudioResampler

    def add(self, frame: "AudioFrame") -> None:
        """Raises: Refused."""
        import av

        if self._kind != (kind := (frame.format.name, frame.layout.name, frame.sample_rate)):
            self.end()
            self._kind, self._queue = kind, av.AudioFifo()
            self._resampler = av.AudioResampler("flt", "mono", RATE)
        frame.pts = None  # else the queue refuses gaps
        self._queue.write(frame)
        if self._queue.samples >= frame.sample_rate:
            self._resample(self._queue.read())

    def end(self) -> None:
        """Raises: Refused."""
        if self._kind:
            self._resample(self._queue.read())
            self._resample(None)  # what the resampler holds back

    def _resample(self, frame: "AudioFrame | None") -> None:
        for output in self._resampler.resample(frame):
            self.samples.extend(memoryview(output.planes[0])[: output.samples * _SAMPLE])
        if len(self.samples) > self._most:
            raise Refused(f"it is longer than {self._most_s:g} s (XYLEM_MEDIA_SOUND_S)")


def _bound(samples: Any) -> None:
    """Files with numbers for samples may have any: an engine would make its own answer of infinity."""
    import numpy as np

    np.nan_to_num(samples, copy=False, nan=0.0)
    np.clip(samples, -1, 1, out=samples)


def _check(config: Any) -> None:
    """A codec's context, or a frame of its own. Raises: Refused."""
    codec = getattr(config, "codec", None)
    name = codec.canonical_name if codec is not None else ""
    if codec is not None and name not in _CODECS and not name.startswith(_PCM):
        raise Refused("its codec is none of PCM, MP3, AAC, ALAC, FLAC, Opus and Vorbis")
    if not _RATES[0] <= config.sample_rate <= _RATES[1]:
        raise Refused(f"it has {config.sample_rate} samples a second, and may have from {_RATES[0]} to {_RATES[1]}")
    channels = config.layout.nb_channels
    if not 1 <= channels <= _CHANNELS:
        raise Refused(f"it has {channels} channels, and may have up to {_CHANNELS}")


def _sound(start: int, samples: Any) -> Sound:
    digest = hashlib.sha256(f"audio {len(samples)} float32 {RATE}\n".encode())
    data = samples.tobytes()
    digest.update(data)
    return Sound(start, len(samples), data, digest.hexdigest())
