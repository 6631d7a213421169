"""Celery's strategy for tasks that are one call of the runner: from the message to the engine's loop at once.

Celery's own strategy makes a request object, acknowledges it, and runs it in a thread of the pool under a tracer, for
1.5 CPU-ms a task. This one keeps what is seen from outside: Flower's events, `celery inspect`, the limit of tasks, and
what is revoked. A message that needs more of Celery goes the usual way: one that is to be run later.
"""

import os
import time
from functools import partial
from typing import Any

import orjson
from celery import Task
from celery.exceptions import InvalidTaskError
from celery.worker import state
from celery.worker.strategy import default

from app.errors import Cancelled, Returned, Revoked
from app.ids import RunId, run_id
from app.messages.celery_message import PAINT_TASK
from app.messages.job import Job
from app.runner.outcome import Outcome
from app.runner.runner import RUNNER, RunArgs
from workers.engine.task_room import ROOM

_JSON = "application/json"
_STEP_S = 1.0


class _Taken:
    """A task in Celery's own lists, which hold it weakly."""

    __slots__ = ("__weakref__", "began", "eventer", "headers", "hostname", "id", "name", "task", "told")
    acknowledged = True

    def __init__(self, task: Task, headers: dict[str, Any], consumer: Any) -> None:
        self.task, self.headers, self.hostname = task, headers, consumer.hostname
        self.eventer = consumer.event_dispatcher  # Celery sets the one of each later connection to the broker
        self.id, self.name = headers["id"], task.name
        self.began = self.told = time.time()

    def tell(self, what: str, **fields: Any) -> None:
        """Sends Flower an event."""
        if self.eventer is not None:
            self.eventer.send(f"task-{what}", uuid=self.id, **fields)

    def step(self, step: int, of: int) -> None:
        """Shows in Flower how far a painting is: once a second, and at its last step."""
        if step == of or time.time() - self.told > _STEP_S:
            self.told = time.time()
            self.tell("progress", result=f"step {step} of {of}")

    def ended(self, outcome: Outcome) -> None:
        """Tells of its end: the result has no text of the answer, and an error no message."""
        error, result = outcome.error, outcome.shown()
        if error is None:
            self.tell("succeeded", result=result, runtime=time.time() - self.began)
        elif isinstance(error, Cancelled | Revoked):
            self.tell("revoked", result=result, terminated=True, signum=None, expired=False)
        elif isinstance(error, Returned):  # another worker goes on with it
            self.tell("retried", result=result, exception=type(error).__name__, traceback="")
        else:
            self.tell("failed", result=result, exception=type(error).__name__, traceback="")

    def info(self, safe: bool = False) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "type": self.name,
            "hostname": self.hostname,
            "args": self.headers.get("argsrepr"),
            "kwargs": self.headers.get("kwargsrepr"),
            "time_start": self.began,
            "acknowledged": self.acknowledged,
            "delivery_info": {},
            "worker_pid": os.getpid(),
        }

    def cancel(self, *_: Any, **__: Any) -> None:
        """Celery ends at once: all requests go back to their API replicas."""
        RUNNER.get().give_up_after(0)


def direct(task: Task, app: Any, consumer: Any, **options: Any) -> Any:
    """A function that Celery calls with each message for `task`.

    The task's `run_args` makes the arguments of `Runner.run`.
    """
    usual = default(task, app, consumer, **options)
    if not RUNNER:  # a batch worker
        return usual

    def take(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **more: Any) -> Any:
        headers = message.headers
        try:
            run: RunArgs[Any] | None = None
            needs_celery = message.content_type != _JSON or headers.get("eta") or headers.get("expires")
            if not needs_celery:
                run = task.run_args(orjson.loads(message.body)[0])
        except (LookupError, TypeError, ValueError) as exc:  # Celery rejects the message, and lives
            raise InvalidTaskError(f"not the arguments of {task.name}: {exc!r}") from exc
        if run is None:
            return usual(message, body, ack, reject, callbacks, **more)
        request = _Taken(task, headers, consumer)
        state.task_reserved(request)
        request.tell(
            "received",
            name=request.name,
            args=headers.get("argsrepr"),
            kwargs=headers.get("kwargsrepr"),
            root_id=headers.get("root_id"),
            parent_id=headers.get("parent_id"),
            retries=headers.get("retries", 0),
            eta=None,
            expires=None,
        )
        if run.request in state.revoked:
            RUNNER.get().soon(partial(_refuse, request, run))
        else:
            RUNNER.get().soon(partial(_begin, request, run))
        return None

    return take


def _begin(message: _Taken, run: RunArgs[Any]) -> None:
    """Begins the run, on the engine's loop."""
    state.task_accepted(message)
    message.tell("started")
    id_ = run_id(run.request, run.attempt)
    if message.name == PAINT_TASK:
        RUNNER.get().watchers[id_] = message.step
    RUNNER.get().start(run, partial(_end, message, id_))


def _refuse(message: _Taken, run: RunArgs[Any]) -> None:
    """Ends the run of a task that was revoked before it came, without beginning it. On the engine's loop."""

    async def refuse(_: Job) -> None:
        if run.nobody_waits is not None:
            await run.nobody_waits()
        raise Revoked

    RUNNER.get().start(run._replace(work=refuse), partial(_end, message, run_id(run.request, run.attempt)))


def _end(message: _Taken, run: RunId, outcome: Outcome, error: BaseException | None) -> None:
    RUNNER.get().watchers.pop(run, None)
    state.task_ready(message)
    ROOM.wake_if_full()
    if error is None:
        message.ended(outcome)
    else:
        message.tell("failed", exception=type(error).__name__, traceback="")
