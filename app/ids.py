"""The ids of the system, as types."""

import secrets
from typing import NewType

RequestId = NewType("RequestId", str)  # "chatcmpl-<24 hex>", also the Celery task id
RunId = NewType("RunId", str)  # one attempt of a request, "<request>.<attempt>"
WorkerId = NewType("WorkerId", str)  # one life of one worker process: a restart gets a new id
PoolId = NewType("PoolId", str)  # the pool's name, which is also its queue's name
ApiId = NewType("ApiId", str)  # one life of one API process
QueueName = NewType("QueueName", str)


def new_request_id(prefix: str) -> RequestId:
    return RequestId(f"{prefix}-{secrets.token_hex(12)}")


def run_id(request: RequestId, attempt: int) -> RunId:
    return RunId(f"{request}.{attempt}")


def new_api_id() -> ApiId:
    return ApiId(secrets.token_hex(4))


def new_worker_id() -> WorkerId:
    return WorkerId(secrets.token_hex(4))


def worker_queue(pool: PoolId, worker: WorkerId) -> QueueName:
    """Takes the requests that were placed on this worker."""
    return QueueName(f"{pool}.{worker}")
