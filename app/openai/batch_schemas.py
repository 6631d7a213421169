"""Requests about batches, and a batch as clients see it: OpenAI's shapes, and `paused`."""

from typing import Annotated, Literal

from pydantic import Field

from app.batch.input_line import ENDPOINTS
from app.batch.records import Batch
from app.errors import RequestError
from app.openai.file_answers import BatchObject, BatchProblem, BatchProblems
from app.openai.schemas import Metadata
from app.schemas.body import Body, Query


class ExpiresAfter(Body):
    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=3600, le=30 * 86_400)]


class BatchRequest(Body):
    input_file_id: str
    endpoint: Annotated[str, Field(json_schema_extra={"enum": list(ENDPOINTS)})]
    completion_window: str  # OpenAI has "24h" only
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None

    def check(self) -> None:
        """Checks that a field's type can't express. Raises: RequestError."""
        if self.endpoint not in ENDPOINTS:
            endpoints = ", ".join(ENDPOINTS)
            raise RequestError(
                f"'endpoint': a batch can be for {endpoints}, not for '{self.endpoint[:100]}'.", param="endpoint"
            )


class BatchesQuery(Query):
    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 20


def as_object(batch: Batch) -> BatchObject:
    order = batch.order
    return {
        "id": order.id,
        "object": "batch",
        "endpoint": order.endpoint,
        "model": batch.model or None,
        "errors": _errors(batch),
        "input_file_id": order.input,
        "completion_window": order.window,
        "status": batch.status,
        "paused": batch.paused,
        "output_file_id": batch.output,
        "error_file_id": batch.errors_file,
        "created_at": order.created,
        "in_progress_at": batch.in_progress_at,
        "expires_at": order.expires,
        "finalizing_at": batch.finalizing_at,
        "completed_at": batch.completed_at,
        "failed_at": batch.failed_at,
        "expired_at": batch.expired_at,
        "cancelling_at": batch.cancelling_at,
        "cancelled_at": batch.cancelled_at,
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "not_executed": batch.not_executed,
        "usage": {
            "input_tokens": batch.prompt,
            "input_tokens_details": {"cached_tokens": batch.cached},
            "output_tokens": batch.completion,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": batch.prompt + batch.completion,
        },
        "metadata": order.metadata,
    }


def _errors(batch: Batch) -> BatchProblems | None:
    if not batch.problems:
        return None
    data: list[BatchProblem] = [
        {"code": p.code, "message": p.message, "param": p.param, "line": p.line} for p in batch.problems
    ]
    return {"object": "list", "data": data}
