"""Pictures, sound and video in a job, and how an engine writes them in a prompt."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

MediaKind = Literal["image", "audio", "video", "embeds"]  # embeds: rows that a client computed, instead of tokens
# For people.
MEDIA_NAMES: Mapping[MediaKind, str] = {
    "image": "pictures",
    "audio": "sound",
    "video": "videos",
    "embeds": "prompt embeddings",
}


class Frame(Struct, frozen=True, array_like=True):
    """A picture's place in a video."""

    number: int  # of those that were taken, from 0
    of: int  # so many
    at_s: float  # from the video's beginning
    long_s: float  # the whole video


class Media(Struct, frozen=True, array_like=True):
    """A picture, a sound, a video or an embedding in a prompt. Its samples are in `media:<sha256>`, or `Job.held`."""

    kind: MediaKind
    sha256: str  # hexadecimal, of kind, shape and samples: the same picture by URL, data or file is one
    # Of a picture: height and width, RGB uint8; of sound: samples, float32 mono, 16 kHz; of an embedding: rows, width.
    # Of a video that is written as one: frames, height, width, and tenths of a second that they are of.
    shape: tuple[int, ...]
    offset: int = 0  # of its placeholders in the prompt, tokens
    length: int = 0  # tokens of placeholders; in a job to transcribe, of the encoder's own prompt
    frame: Frame | None = None  # None: it is no frame of a video
    dtype: str = ""  # of an embedding: float32, float16 or bfloat16, little-endian


# Of a picture's sides, where an engine tells what it becomes: many a processor first scales the shorter side to some
# hundred pixels, at the picture's proportions.
MOST_RATIO = 100
TENTHS = 10  # of a second, in which a video's length is told: as exactly as engines write times


def is_drawable(kind: MediaKind, shape: tuple[int, ...]) -> bool:
    """Whether a medium of this shape, as in `Media`, may be asked about as far as its proportions say it."""
    sides = {"image": shape, "video": shape[1:3]}.get(kind, (1,))
    return max(sides) <= MOST_RATIO * min(sides)


class MediaSign(Struct, frozen=True, array_like=True):
    """An engine's way to write media of one kind in a prompt, where nobody else knows it."""

    kind: MediaKind
    digest: str  # of all that decides what a medium becomes: engines of the same one expand alike
    marker: str  # of one medium, for chat templates that take texts
    target: tuple[int, ...]  # tokens of it, that the engine replaces; none: it puts all behind `first`
    # Pairs of adjacent tokens, and what the engine writes instead: one after the other, everywhere in such a prompt.
    joins: tuple[tuple[int, int, int], ...] = ()
    numbered: bool = False  # what stands for one depends on how many are before it, too
    most: int = 0  # tokens that one may become
    counted: bool = False  # what stands for one depends on how many the prompt has, too
    first: tuple[int, ...] = ()  # tokens with which prompts begin, if it has no target
    alone: bool = False  # a prompt may have only one
