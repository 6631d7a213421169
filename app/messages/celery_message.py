"""Celery's message protocol 2 as kombu's Redis transport stores it, without Celery.

Celery's own publisher blocks and costs about 1.4 CPU-ms a message; this takes microseconds, and the messages are
sent by the async client. Format: "Message Protocol" in Celery's documentation, `kombu.transport.virtual` for the
envelope. A test compares it with Celery's own messages.
"""

import base64
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import orjson

from app.ids import QueueName, RequestId, WorkerId, worker_queue
from app.keys import PRIORITY_STEPS
from app.messages.handoff import Handoff, KvHandle, Rendezvous
from app.messages.job import Job
from app.messages.kinds import StageKind
from app.telemetry import logger

log = logger(__name__)

DECODE_TASK = "app.tasks.decode.decode"
PREFILL_TASK = "app.tasks.prefill.prefill"
ENCODE_TASK = "app.tasks.encode.encode"
PAINT_TASK = "app.tasks.paint.paint"
PICTURES_TASK = "app.tasks.encode_pictures.encode_pictures"
_TASKS: Mapping[StageKind, str] = {
    "prefill": PREFILL_TASK,
    "decode": DECODE_TASK,
    "encode": ENCODE_TASK,
    "paint": PAINT_TASK,
    "encode_pictures": PICTURES_TASK,
}
_HEADERS: Mapping[str, Any] = {
    "lang": "py",
    "shadow": None,
    "eta": None,
    "expires": None,
    "group": None,
    "group_index": None,
    "timelimit": [None, None],
    "origin": f"{os.getpid()}@{socket.gethostname()}",
    "ignore_result": True,
    "replaced_task_nesting": 0,
    "stamped_headers": None,
    "stamps": {},
}


def task_message(
    task: str,
    queue: QueueName,
    request: RequestId,
    attempt: int,
    step: int,
    handoff: Handoff | None = None,
    then: QueueName | None = None,
    x_request_id: str = "",
    parent: str | None = None,
    then_task: str = DECODE_TASK,
    last: QueueName | None = None,
    traceparent: str = "",
) -> bytes:
    """The bytes to LPUSH for `task([handoff,] request, attempt)`. `step` is one of PRIORITY_STEPS.

    With `then` it is chain(task, then_task), in that queue: a prefill's result is the handoff of a decode task.
    `last`: the queue of the decode task behind these two. `parent`: the id of the task behind which it comes in that
    chain. `traceparent`: W3C's header, for whoever instruments Celery; the task reads it in the job.
    `x_request_id` appears as a keyword argument in Celery's events, so in Flower; the task doesn't get it.
    """
    args = (request, attempt) if handoff is None else (msgspec.to_builtins(handoff), request, attempt)
    kwargs_repr = repr({"x_request_id": x_request_id}) if x_request_id else "{}"
    trace_headers = {"traceparent": traceparent} if traceparent else {}
    links = (DECODE_TASK, last), (then_task, then)  # Celery takes the next one from the end
    chain = _chain(links, request, attempt, kwargs_repr, trace_headers) if then or last else None
    body = [args, {}, {"callbacks": None, "errbacks": None, "chain": chain, "chord": None}]
    task_id = _task_id(task, queue, request, attempt)
    headers = {
        **_HEADERS,
        "task": task,
        "id": task_id,
        "retries": attempt,
        "root_id": parent or task_id,
        "parent_id": parent,
        "argsrepr": repr(args if handoff is None else (_shown(handoff), request, attempt)),
        "kwargsrepr": kwargs_repr,
        **trace_headers,
    }
    return _enveloped(body, headers, queue, step, f"{request}.{attempt}")


def _enveloped(body: list[Any], headers: Mapping[str, Any], queue: QueueName, step: int, tag: str) -> bytes:
    """The message as kombu writes it into Redis. `tag`: of its delivery."""
    properties = {
        "correlation_id": headers["id"],
        "reply_to": "",
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": queue},
        "priority": step,
        "body_encoding": "base64",
        "delivery_tag": tag,
    }
    return orjson.dumps(
        {
            "body": base64.b64encode(orjson.dumps(body)).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": headers,
            "properties": properties,
        }
    )


def task_messages(job: Job, step: int, handoff: KvHandle | None, meets_at: str, ranks: int = 1) -> list[bytes]:
    """The message to each of a job's workers, in the order of the stages; empty for a task that Celery's chain starts.

    `handoff`: where the prompt's KV is already. `meets_at`: "host:port" where both workers meet, if they begin at once.
    `ranks`: of the first worker. Some engines take the number of the room modulo this as the rank.
    """
    own, trace, stage = _own_id(job), job.traceparent, job.stages[0]
    if len(job.stages) == 1:
        task, queue = _TASKS[stage.kind], worker_queue(stage.pool, stage.worker)
        return [
            task_message(
                task, queue, job.request, job.attempt, step, handoff=handoff, x_request_id=own, traceparent=trace
            )
        ]
    if stage.kind == "encode_pictures":
        return _picture_messages(job, step)
    tasks = [
        (_TASKS[stage.kind], worker_queue(stage.pool, stage.worker), job.request, job.attempt, step)
        for stage in job.stages
    ]
    if not meets_at:
        return [task_message(*tasks[0], then=tasks[1][1], x_request_id=own, traceparent=trace), b""]
    kv_source = rendezvous(meets_at, ranks, stage.rank)
    return [task_message(*task, kv_source, x_request_id=own, traceparent=trace) for task in tasks]


def rendezvous(meets_at: str, ranks: int, rank: int) -> Rendezvous:
    """A room of its own. `rank`: of the `ranks` of the worker that is met there."""
    host, _, port = meets_at.rpartition(":")
    room = secrets.randbits(62)
    return Rendezvous(host, int(port), room - room % ranks + rank)


def _picture_messages(job: Job, step: int) -> list[bytes]:
    """The same as `task_messages`, where other workers encode its pictures first."""
    encodes = [stage for stage in job.stages if stage.kind == "encode_pictures"]
    first, behind = job.stages[len(encodes)], job.stages[len(encodes) + 1 :]
    args = job.request, job.attempt, step
    then: QueueName | None = worker_queue(first.pool, first.worker)
    last = worker_queue(behind[0].pool, behind[0].worker) if behind else None
    if job.meets is not None:  # both begin when the pictures are encoded, and the last encoder tells them so
        then = last = None
    messages = [
        task_message(
            PICTURES_TASK,
            worker_queue(stage.pool, stage.worker),
            *args,
            then=then,
            then_task=_TASKS[first.kind],
            x_request_id=_own_id(job),
            last=last,
            traceparent=job.traceparent,
        )
        for stage in encodes
    ]
    return messages + [b""] * (len(job.stages) - len(encodes))


def next_message(job: Job, handoff: KvHandle) -> tuple[QueueName, int, bytes]:
    """The message of the decode task behind a prefill, as Celery's chain would send it: its queue, step and bytes."""
    stage, step = job.stages[-1], priority_step(job.priority, aside=job.aside)
    queue, parent = worker_queue(stage.pool, stage.worker), _prefill_id(job.request, job.attempt)
    task = DECODE_TASK, queue, job.request, job.attempt, step, handoff
    own, trace = _own_id(job), job.traceparent
    return queue, step, task_message(*task, x_request_id=own, parent=parent, traceparent=trace)


class NextTask(NamedTuple):
    queue: QueueName
    step: int
    message: bytes


def behind_pictures(job: Job, worker: WorkerId) -> list[NextTask]:
    """The task behind the job's encoded pictures, the last of them by this worker; two where they begin at once."""
    encodes = [stage for stage in job.stages if stage.kind == "encode_pictures"]
    mine = next(stage for stage in encodes if stage.worker == worker)
    stages, step = job.stages[len(encodes) :], priority_step(job.priority, aside=job.aside)
    queues = [worker_queue(stage.pool, stage.worker) for stage in stages]
    then = queues[1] if job.meets is None and len(queues) > 1 else None
    parent = _task_id(PICTURES_TASK, worker_queue(mine.pool, worker), job.request, job.attempt)
    own, trace = _own_id(job), job.traceparent
    return [
        NextTask(
            queue,
            step,
            task_message(
                _TASKS[stage.kind],
                queue,
                job.request,
                job.attempt,
                step,
                handoff=job.meets,
                then=then,
                x_request_id=own,
                parent=parent,
                traceparent=trace,
            ),
        )
        for stage, queue in zip(stages[: 1 if job.meets is None else None], queues, strict=False)
    ]


def _task_id(task: str, queue: QueueName, request: RequestId, attempt: int) -> str:
    if task == PICTURES_TASK:
        return f"{request}.{attempt}.pictures.{queue}"
    return _prefill_id(request, attempt) if task == PREFILL_TASK else request


def _prefill_id(request: RequestId, attempt: int) -> str:
    return f"{request}.{attempt}.prefill"


def _own_id(job: Job) -> str:
    """The client's name for the request, if it has one."""
    return "" if job.x_request_id == job.request else job.x_request_id


def _shown(handoff: Handoff) -> Any:
    """A handoff in Celery's events: whole, it may have kilobytes."""
    return {"holder": handoff.holder} if isinstance(handoff, KvHandle) else "a handoff"


def _chain(
    links: Sequence[tuple[str, QueueName | None]],
    request: RequestId,
    attempt: int,
    text: str,
    headers: Mapping[str, str],
) -> list[dict[str, Any]]:
    """The chain of those tasks that have a queue. `text`, `headers`: as in `_next_signature`."""
    return [_next_signature(task, queue, request, attempt, text, headers=headers) for task, queue in links if queue]


def _next_signature(
    task: str, queue: QueueName, request: RequestId, attempt: int, text: str, headers: Mapping[str, str]
) -> dict[str, Any]:
    """The next task in the form of Celery's chain, with its parent's priority (`task_inherit_parent_priority`).

    `text`: the keyword arguments in Celery's events. `headers`: further ones.
    """
    options: dict[str, Any] = {"queue": queue, "task_id": _task_id(task, queue, request, attempt)}
    options["ignore_result"] = True
    if headers:
        options["headers"] = headers
    return {
        "task": task,
        "args": (request, attempt),
        "kwargs": {},
        "options": options if text == "{}" else options | {"kwargsrepr": text},
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
        kv_source: Handoff | None = msgspec.convert(handoff[0], Handoff | None) if handoff else None
    except msgspec.ValidationError as exc:
        log.error("handoff_not_understood", request=request, error=str(exc))
        kv_source = None
    return kv_source, RequestId(request), int(attempt)


def priority_step(priority: int, *, aside: bool = False) -> int:
    """The Redis list for a request's priority: lower is sooner, 0 is usual; the last one is for aside requests."""
    urgent, usual, later, last = PRIORITY_STEPS
    if aside:
        return last
    if priority == 0:
        return usual
    return urgent if priority < 0 else later
