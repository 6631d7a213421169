"""The ids of the system, as types."""

import hashlib
import os
import re
import secrets
from typing import NewType

RequestId = NewType("RequestId", str)  # "chatcmpl-<ApiId><16 hex>", also the Celery task id
RunId = NewType("RunId", str)  # one attempt of a request, "<request>.<attempt>"
WorkerId = NewType("WorkerId", str)  # one worker process: a restarted one has a new id
PlaceId = NewType("PlaceId", str)  # one KV cache: "<worker>", and "<worker>.<rank>" for ranks above 0
PoolId = NewType("PoolId", str)  # the pool's name, which is also its queue's name
CellId = NewType("CellId", str)  # a cell as one API process knows it: HOME, or where its Redis is
ApiId = NewType("ApiId", str)  # one API process, 8 hex: a restarted one has a new id
QueueName = NewType("QueueName", str)
FileId = NewType("FileId", str)  # "file-<24 hex>"
BatchId = NewType("BatchId", str)  # "batch_<24 hex>"
ConversationId = NewType("ConversationId", str)  # "conv_<24 hex>"
PrefixId = NewType("PrefixId", str)  # "prefix_<24 hex>"
TenantId = NewType("TenantId", str)  # a tenant's name
KeyId = NewType("KeyId", str)  # "key_<24 hex>"; the name of a key that an older version made; "" without a key

_REQUEST = re.compile("[a-z]+[-_]([0-9a-f]{8})[0-9a-f]{16}")

HOME = CellId("home")  # the cell of the process itself
BATCH_QUEUE = QueueName("batch")  # of batch workers


def new_request_id(prefix: str, api: ApiId) -> RequestId:
    """A new id. It names the API process, so that others know which one to ask about the request."""
    return RequestId(f"{prefix}{api}{os.urandom(8).hex()}")  # of `secrets`' source, in half its time


def made_by(request: RequestId) -> ApiId | None:
    """The API process that a request's id names; None if this is no such id."""
    match = _REQUEST.fullmatch(request)
    return ApiId(match[1]) if match else None


def run_id(request: RequestId, attempt: int) -> RunId:
    return RunId(f"{request}.{attempt}")


def request_of(task: str) -> RequestId:
    """The request of a run, or of one of its Celery tasks: their ids begin with the request's, and a dot."""
    return RequestId(task.partition(".")[0])


def place_id(worker: WorkerId, rank: int) -> PlaceId:
    """Data-parallel ranks of one worker have caches of their own."""
    return PlaceId(f"{worker}.{rank}" if rank else worker)


def new_api_id() -> ApiId:
    return ApiId(secrets.token_hex(4))


def new_worker_id() -> WorkerId:
    return WorkerId(secrets.token_hex(4))


def new_file_id() -> FileId:
    return FileId(f"file-{secrets.token_hex(12)}")


def new_batch_id() -> BatchId:
    return BatchId(f"batch_{secrets.token_hex(12)}")


def new_message_batch_id() -> BatchId:
    """A new id of a batch in Anthropic's shape."""
    return BatchId(f"msgbatch_{secrets.token_hex(12)}")


def submitted_by(task: str) -> BatchId:
    """The batch of a Celery task that submits one: delivered twice, it submits it once."""
    return BatchId(f"batch_{hashlib.sha256(task.encode()).hexdigest()[:24]}")


def line_id(batch: BatchId, line: int) -> RequestId:
    """The id of a batch's line, also in its output."""
    return RequestId(f"batch_req_{batch.removeprefix('batch_')}_{line}")


def new_conversation_id() -> ConversationId:
    return ConversationId(f"conv_{secrets.token_hex(12)}")


def new_prefix_id() -> PrefixId:
    return PrefixId(f"prefix_{secrets.token_hex(12)}")


def new_key_id() -> KeyId:
    return KeyId(f"key_{secrets.token_hex(12)}")


def worker_queue(pool: PoolId, worker: WorkerId) -> QueueName:
    """The queue of requests that were placed on this worker."""
    return QueueName(f"{pool}.{worker}")
