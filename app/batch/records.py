"""The records of files and batches. `app/api/` makes the shapes for clients from them."""

from typing import Literal

import msgspec
from msgspec import Struct

from app.ids import BatchId, FileId, KeyId, TenantId
from app.messages.wire import decoder, encode
from app.tenants.limit_table import UNLIMITED, TenantLimits
from app.tenants.records import DEFAULT, Rate

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
LIVE: tuple[Status, ...] = ("validating", "in_progress", "finalizing", "cancelling")


RECORD = 1024  # bytes: of a file's record in Redis, with the longest name and its places in lists, about
PAINTED = ("image", "video")  # purposes that clients' uploads can't have


class StoredFile(Struct, frozen=True, array_like=True):
    """A file; its bytes are in the storage under `path`."""

    id: FileId
    key: KeyId  # `ApiKey.owner` of its API key
    name: str
    purpose: str
    size: int  # bytes
    created: int  # seconds since the epoch
    expires: int | None = None

    @property
    def path(self) -> str:
        return f"files/{self.id}"

    @property
    def counted(self) -> int:
        """Bytes that it takes of its key's quota: its own, and those of its record in Redis."""
        return self.size + RECORD

    @property
    def is_painted(self) -> bool:
        """Whether it is in the media store."""
        return self.purpose in PAINTED


class Problem(Struct, frozen=True, array_like=True):
    """The reason why a batch or a line of it failed."""

    code: str
    message: str
    line: int | None = None  # from 1
    param: str | None = None


class BatchOrder(Struct, frozen=True, array_like=True):
    """A client's order of a batch."""

    id: BatchId
    key: KeyId  # as in StoredFile
    endpoint: str  # "/v1/chat/completions"
    input: FileId
    window: str  # as asked: "24h"
    created: int  # seconds since the epoch
    expires: int  # seconds since the epoch; nothing is computed later
    metadata: dict[str, str] | None = None
    output_expires_s: int | None = None  # how long output and error file are kept
    rate: Rate | None = None  # its API key's limits for its lines; they hold also after the key is revoked
    tenant: TenantId = DEFAULT  # of that key
    within: TenantLimits = UNLIMITED  # what its client may ask for, when it was ordered
    tenant_lines: int | None = None  # of the tenant's unfinished batches together, when it was ordered
    requests: int = 0  # lines of a batch in Anthropic's shape, which come with the order
    waits: str = ""  # JSON: Celery's signature of the task that is to be sent at its end, for who waits for its answers


class Usage(Struct, frozen=True):
    """Tokens."""

    prompt: int = 0
    cached: int = 0  # of the prompts
    completion: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(self.prompt + other.prompt, self.cached + other.cached, self.completion + other.completion)


class Batch(Struct, frozen=True):
    """A batch's state: the hash `batch:<id>`, whose fields have these names."""

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
    ending: str = ""  # the terminal status that it will have
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    cancelling_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelled_at: int | None = None
    output: FileId | None = None
    errors_file: FileId | None = None
    cleaned: bool = False  # its parts and their results are deleted
    tries: int = 0  # to tell the webhook
    tell_at: int = 0  # when the next try is due, seconds since the epoch
    told: bool = False  # the webhook has been told
    given: bool = False  # its answers to the Celery task that waits
    problems: list[Problem] = []
    broke: int = 0  # internal errors in its next step
    not_executed: int = 0  # of `failed`, once it has ended: lines that were cancelled or expired
    lethal: int = 0  # lines that were given up because batch workers died with them

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
    raw_values = {name.decode(): value for name, value in fields.items()}
    values = {
        name: _PACKED[name](value) if name in _PACKED else value.decode()
        for name, value in raw_values.items()
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
    status: int  # HTTP status; 0: the line was not executed
    request: str = ""
    body: bytes = b""  # JSON: the answer, or OpenAI's error
    problem: Problem | None = None
    prompt: int = 0  # tokens
    cached: int = 0
    completion: int = 0
    apart: bool = False  # its body is too long for Redis, and is in the storage: `paths.body`


class Part(Struct, frozen=True, array_like=True):
    """The lines of one task."""

    lines: list[BatchLine]


decode_file = decoder(StoredFile)
decode_line = decoder(BatchLine)
decode_part = decoder(Part)
decode_result = decoder(Result)
decode_results = decoder(list[Result])
