"""`Recording` in `recording`, from the command line; requests that end meanwhile come back in `recorded:<id>`."""

from msgspec import Struct

from app.ids import ApiId
from app.messages.wire import decoder


class Recording(Struct, frozen=True, array_like=True):
    """A request of `xylem record` to API replicas, for the requests that come in a span of time."""

    id: str
    secret: bytes  # the key of all digests; gone with the recording
    since: float  # seconds since the epoch, by Redis' clock
    until: float
    model: str = ""  # "": all


class Recorded(Struct, frozen=True, array_like=True):
    """A prompt that was answered: times and lengths, no text."""

    request: str
    came: float  # seconds since the epoch, by Redis' clock
    prompt: int  # tokens
    answers: list[int]  # tokens of each choice
    blocks: bytes  # 8 bytes for each block of the trace: a digest of it and all before it
    session: bytes = b""  # a digest; empty: none


class RecordedBatch(Struct, frozen=True, array_like=True):
    api: ApiId
    records: list[Recorded]
    total: int  # of its records so far, with those that were dropped
    unanswered: int  # its requests so far that ended without a token
    running: int  # its requests that may still come: they run, or are in the next message
    at: float  # when it counted them, seconds since the epoch, by Redis' clock


decode_recording = decoder(Recording)
decode_recorded = decoder(RecordedBatch)
