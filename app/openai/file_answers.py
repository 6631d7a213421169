"""Files and batches as clients see them: OpenAI's shapes, and `paused`."""

from typing import Literal

from typing_extensions import TypedDict

from app.batch.records import Status


class FileObject(TypedDict, closed=True):
    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"]
    status_details: None


class FileList(TypedDict, closed=True):
    object: Literal["list"]
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(TypedDict, closed=True):
    id: str
    object: Literal["file"]
    deleted: Literal[True]


class BatchProblem(TypedDict, closed=True):
    code: str
    message: str
    param: str | None
    line: int | None


class BatchProblems(TypedDict, closed=True):
    object: Literal["list"]
    data: list[BatchProblem]


class BatchCounts(TypedDict, closed=True):
    total: int
    completed: int
    failed: int


class BatchInputTokens(TypedDict, closed=True):
    cached_tokens: int


class BatchOutputTokens(TypedDict, closed=True):
    reasoning_tokens: int


class BatchUsage(TypedDict, closed=True):
    input_tokens: int
    input_tokens_details: BatchInputTokens
    output_tokens: int
    output_tokens_details: BatchOutputTokens
    total_tokens: int


class BatchObject(TypedDict, closed=True):
    id: str
    object: Literal["batch"]
    endpoint: str
    model: str | None
    errors: BatchProblems | None
    input_file_id: str
    completion_window: str
    status: Status
    paused: bool
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchCounts
    not_executed: int  # of the failed lines, once it has ended: those that were cancelled or expired
    usage: BatchUsage
    metadata: dict[str, str] | None


class BatchList(TypedDict, closed=True):
    object: Literal["list"]
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool
