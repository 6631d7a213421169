"""What is known of files and batches. The shapes that clients see are made of these in `app/api/`."""

from typing import Literal

import msgspec
from msgspec import Struct

from app.ids import BatchId, FileId, KeyId
from app.messages import Rate, decoder, encode

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
LIVE: tuple[Status, ...] = ("validating", "in_progress", "finalizing", "cancelling")


class StoredFile(Struct, frozen=True, array_like=True):
    """Its bytes lie in the storage under `path`."""

    id: FileId
    key: KeyId  # `ApiKey.owner` of the API key that it came with
    name: str
    purpose: str
    size: int  # bytes
    created: int  # seconds since the epoch
    expires: int | None = None

    @property
    def path(self) -> str:
        return f"files/{self.id}"


class Problem(Struct, frozen=True, array_like=True):
    """Why a batch or a line of it failed."""

    code: str
    message: str
    line: int | None = None  # from 1
    param: str | None = None


class BatchOrder(Struct, frozen=True, array_like=True):
    """What was asked for."""

    id: BatchId
    key: KeyId  # as a file's
    endpoint: str  # "/v1/chat/completions"
    input: FileId
    window: str  # as asked: "24h"
    created: int  # seconds since the epoch
    expires: int  # …from when on nothing more is computed
    metadata: dict[str, str] | None = None
    output_expires_s: int | None = None  # how long output and error file are kept
    rate: Rate | None = None  # what its API key lets its lines have; it holds also when that one is revoked


class Usage(Struct, frozen=True):
    """Tokens."""

    prompt: int = 0
    cached: int = 0  # of the prompts
    completion: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(self.prompt + other.prompt, self.cached + other.cached, self.completion + other.completion)


class Batch(Struct, frozen=True):
    """How it stands: the hash `batch:<id>`, whose fields have these names."""

    order: BatchOrder
    status: Status = "validating"
    model: str = ""
    total: int = 0  # lines
    completed: int = 0
    failed: int = 0
    prompt: int = 0  # tokens
    cached: int = 0
    completion: int = 0
    parts: int = 0
    paused: bool = False
    ending: str = ""  # why it is being finished: a terminal status
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    cancelling_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelled_at: int | None = None
    output: FileId | None = None
    errors_file: FileId | None = None
    cleaned: bool = False  # nothing but its record is left of it
    tries: int = 0  # to tell the webhook
    tell_at: int = 0  # when the next one is due
    told: bool = False
    problems: list[Problem] = []
    broke: int = 0  # times that what was due of it broke in an unforeseen way

    @property
    def ended_at(self) -> int:
        return self.completed_at or self.failed_at or self.expired_at or self.cancelled_at or 0

    @property
    def left(self) -> int:
        """Lines that have no result yet."""
        return self.total - self.completed - self.failed


_PACKED = {"order": decoder(BatchOrder), "problems": decoder(list[Problem])}


def read_batch(fields: dict[bytes, bytes]) -> Batch:
    """Raises: msgspec.DecodeError, msgspec.ValidationError."""
    known = {name.decode(): value for name, value in fields.items()}
    values = {
        name: _PACKED[name](value) if name in _PACKED else value.decode()
        for name, value in known.items()
        if name in Batch.__struct_fields__
    }
    return msgspec.convert(values, Batch, strict=False)


def packed(value: BatchOrder | list[Problem]) -> bytes:
    return encode(value)


class BatchLine(Struct, frozen=True, array_like=True):
    """One request of a batch."""

    number: int  # in the input file, from 1
    custom_id: str
    body: bytes  # JSON


class Result(Struct, frozen=True, array_like=True):
    """The result of a line."""

    number: int
    custom_id: str | None
    status: int  # as HTTP's; 0: it was never asked
    request: str = ""
    body: bytes = b""  # JSON: the answer, or OpenAI's error
    problem: Problem | None = None
    prompt: int = 0  # tokens
    cached: int = 0
    completion: int = 0
    apart: bool = False  # its body is too long for Redis, and lies in the storage by its request's id


class Part(Struct, frozen=True, array_like=True):
    """Lines that are answered by one task."""

    lines: list[BatchLine]


decode_file = decoder(StoredFile)
decode_line = decoder(BatchLine)
decode_part = decoder(Part)
decode_result = decoder(Result)
decode_results = decoder(list[Result])
