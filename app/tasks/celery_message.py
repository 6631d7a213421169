"""Celery's message protocol 2 as kombu's Redis transport stores it, without Celery.

Celery's own publisher blocks and costs about 1.4 CPU-ms a message; this takes microseconds, and the messages are
sent by the async client. Format: "Message Protocol" in Celery's documentation, `kombu.transport.virtual` for the
envelope. A test compares it with Celery's own messages.
"""

import base64
import os
import secrets
import socket
from collections.abc import Sequence
from typing import Any

import msgspec
import orjson

from app.ids import QueueName, RequestId, worker_queue
from app.keys import PRIORITY_STEPS
from app.messages import Handoff, Job, KvHandle, Rendezvous
from app.telemetry import logger

log = logger(__name__)

DECODE_TASK = "app.tasks.decode.decode"
PREFILL_TASK = "app.tasks.prefill.prefill"
ENCODE_TASK = "app.tasks.encode.encode"
_TASKS = {"prefill": PREFILL_TASK, "decode": DECODE_TASK, "encode": ENCODE_TASK}
_ORIGIN = f"{os.getpid()}@{socket.gethostname()}"


def task_message(
    task: str,
    queue: QueueName,
    request: RequestId,
    attempt: int,
    step: int,
    handoff: Handoff | None = None,
    then: QueueName | None = None,
    x_request_id: str = "",
) -> bytes:
    """The bytes to LPUSH for `task([handoff,] request, attempt)`. `step` is one of PRIORITY_STEPS.

    With `then` it is chain(task, decode): the task's result is the handoff of a decode task in that queue.
    `x_request_id` appears as a keyword argument in Celery's events, so in Flower; the task doesn't get it.
    """
    args = (request, attempt) if handoff is None else (msgspec.to_builtins(handoff), request, attempt)
    shown = repr({"x_request_id": x_request_id}) if x_request_id else "{}"
    chain = [_decode_signature(then, request, attempt, shown)] if then else None
    embed = {"callbacks": None, "errbacks": None, "chain": chain, "chord": None}
    body = base64.b64encode(orjson.dumps([args, {}, embed])).decode()
    task_id = f"{request}.{attempt}.prefill" if task == PREFILL_TASK else request
    return orjson.dumps(
        {
            "body": body,
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {
                "lang": "py",
                "task": task,
                "id": task_id,
                "shadow": None,
                "eta": None,
                "expires": None,
                "group": None,
                "group_index": None,
                "retries": attempt,
                "timelimit": [None, None],
                "root_id": task_id,
                "parent_id": None,
                "argsrepr": repr(args if handoff is None else ("a handoff", request, attempt)),
                "kwargsrepr": shown,
                "origin": _ORIGIN,
                "ignore_result": True,
                "replaced_task_nesting": 0,
                "stamped_headers": None,
                "stamps": {},
            },
            "properties": {
                "correlation_id": task_id,
                "reply_to": "",
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": queue},
                "priority": step,
                "body_encoding": "base64",
                "delivery_tag": f"{request}.{attempt}",
            },
        }
    )


def task_messages(job: Job, step: int, handoff: KvHandle | None, meets_at: str, ranks: int = 1) -> list[bytes]:
    """The message to each of a job's workers, in the order of the stages; empty for a task that Celery's chain starts.

    `handoff`: where the prompt's KV is already. `meets_at`: "host:port" where both workers meet, if they begin at once.
    `ranks`: of the first worker. Some engines take the number of the room modulo this as the rank.
    """
    own = "" if job.x_request_id == job.request else job.x_request_id
    tasks = [
        (_TASKS[stage.kind], worker_queue(stage.pool, stage.worker), job.request, job.attempt, step)
        for stage in job.stages
    ]
    if len(tasks) > 1 and not meets_at:
        return [task_message(*tasks[0], then=tasks[1][1], x_request_id=own), b""]
    given: Handoff | None = handoff
    if len(tasks) > 1:
        host, _, port = meets_at.rpartition(":")
        room = secrets.randbits(62)
        given = Rendezvous(host, int(port), room - room % ranks + job.stages[0].rank)
    return [task_message(*task, given, x_request_id=own) for task in tasks]


def _decode_signature(queue: QueueName, request: RequestId, attempt: int, shown: str) -> dict[str, Any]:
    """The decode task in the form of Celery's chain, with its parent's priority (`task_inherit_parent_priority`).

    `shown`: the keyword arguments in Celery's events.
    """
    options = {"queue": queue, "task_id": request, "ignore_result": True}
    return {
        "task": DECODE_TASK,
        "args": (request, attempt),
        "kwargs": {},
        "options": options if shown == "{}" else options | {"kwargsrepr": shown},
        "subtask_type": None,
        "immutable": False,
    }


def read_task_message(raw: bytes) -> tuple[Handoff | None, RequestId, int] | None:
    """The arguments of a queued message, made by `task_message` or Celery's chain.

    None for any other value: Redis may have anything in the list.
    """
    try:
        args, _, _ = orjson.loads(base64.b64decode(orjson.loads(raw)["body"]))
        return read_args(args)
    except (ValueError, TypeError, LookupError) as exc:
        log.error("task_not_understood", error=type(exc).__name__, size=len(raw))
        return None


def read_args(args: Sequence[Any]) -> tuple[Handoff | None, RequestId, int]:
    """A task's arguments. A handoff of another version becomes None: decoding works without one."""
    *handoff, request, attempt = args
    try:
        given: Handoff | None = msgspec.convert(handoff[0], Handoff | None) if handoff else None
    except msgspec.ValidationError as exc:
        log.error("handoff_not_understood", request=request, error=str(exc))
        given = None
    return given, RequestId(request), int(attempt)


def priority_step(priority: int, *, aside: bool = False) -> int:
    """The Redis list for a request's priority: lower is sooner, 0 is usual; the last one is for aside requests."""
    urgent, usual, later, last = PRIORITY_STEPS
    if aside:
        return last
    if priority == 0:
        return usual
    return urgent if priority < 0 else later
