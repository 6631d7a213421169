"""The tasks of batches, for the queue `batch` of the batch workers.

Their arguments are ids: prompts and answers are in files. A task delivered twice does nothing the second time.
"""

from itertools import chain
from typing import Any, Protocol

from celery import Task, shared_task, signature
from celery.exceptions import Ignore
from celery.signals import task_revoked
from kombu.utils import json

from app.errors import RequestError, StorageDown, StoreDown
from app.ids import submitted_by
from app.runner.process_slot import ProcessSlot

_MOST_WAITS = 64 * 2**10  # bytes of a signature: whoever waits in a chord has its body there


class BatchJobs(Protocol):
    """Work on a whole batch. All methods block."""

    def submit(
        self, path: str, endpoint: str, window: str, metadata: dict[str, str] | None, task: str, waits: str = ""
    ) -> str: ...
    def begin(self, batch: str) -> None: ...
    def finish(self, batch: str) -> None: ...
    def notify(self, batch: str) -> None: ...
    def answers(self, batch: str) -> dict[str, Any]: ...
    def given(self, batch: str) -> None: ...


class BatchWorker(Protocol):
    """A batch worker, as its tasks use it."""

    @property
    def batch_jobs(self) -> BatchJobs: ...

    def answer(self, batch: str, part: int, ticket: int) -> None:
        """Blocks."""

    def revoke(self, tasks: list[str]) -> None:
        """Cancels the batches that these tasks have submitted. Doesn't wait for it."""


BATCH_WORKER = ProcessSlot[BatchWorker]("a worker of the queue 'batch'")


class _Submit(Task):
    def on_replace(self, sig: Any) -> Any:
        """The task that has this one's id, chord and callbacks: it is sent when the batch has ended."""
        return sig


class _Result(Task):
    def after_return(self, status: Any, retval: Any, task_id: Any, args: Any, *_: Any) -> None:
        """Called when its result is where the caller reads it."""
        BATCH_WORKER.get().batch_jobs.given(args[0])


class _Hidden:
    """A result that Celery's events and its log don't show."""

    def __init__(self, value: dict[str, Any]) -> None:
        self._value = value

    def __json__(self) -> dict[str, Any]:
        return self._value

    def __repr__(self) -> str:
        return f"{self._value['id']}: {self._value['status']}, with {len(self._value['answers'])} answers"


@shared_task(bind=True, base=_Submit, name="app.tasks.batch.submit", ignore_result=False, throws=(RequestError,))
def submit(
    self: Task,
    path: str,
    endpoint: str,
    completion_window: str = "24h",
    metadata: dict[str, str] | None = None,
    answers: bool = False,
) -> str:
    """Creates a batch of the file `path` in the storage (XYLEM_FILES); its result is the batch's id.

    `answers`: its result is what `result` returns, when the batch has ended. Raises: Ignore, RequestError.
    """
    _check_queues(self)
    waits = _waits(self) if answers else ""
    batch = BATCH_WORKER.get().batch_jobs.submit(
        path, endpoint, completion_window, metadata, self.request.id, waits=waits
    )
    if answers:
        raise Ignore
    return batch


def _check_queues(task: Task) -> None:
    """Raises: RequestError, if a task that follows would be in a queue that nobody reads."""
    request = task.request
    lists = request.callbacks, request.errbacks, request.chain, [request.chord] if request.chord else None
    for after in chain.from_iterable(each for each in lists if each):
        name, queue = after["task"], after.get("options", {}).get("queue")
        if not queue and name not in task.app.tasks:
            raise RequestError(
                f"{name} comes after this task and has no queue: {name.rpartition('.')[2]}.s().set(queue=…)."
            )


def _waits(task: Task) -> str:
    """The task that is sent in place of this one when its batch has ended, as JSON. Raises: RequestError."""
    if not task.app.conf.result_backend:
        raise RequestError("answers need a place for results: XYLEM_RESULT_URL is not set.", param="answers")
    text: str = json.dumps(task.replace(result.si(submitted_by(task.request.id))))
    if len(text) > _MOST_WAITS:
        raise RequestError(f"The task's chord and callbacks have more than {_MOST_WAITS} bytes.", param="answers")
    return text


def give(waits: str) -> None:
    """Sends the task of `_waits`. Raises: OperationalError."""
    signature(json.loads(waits)).delay()


@shared_task(base=_Result, name="app.tasks.batch.result", ignore_result=False)
def result(batch: str) -> Any:
    """The end of a batch: its id, status, counts, files and answers, as many as a result may have.

    Raises: Ignore, BatchNotFound.
    """
    try:
        return _Hidden(BATCH_WORKER.get().batch_jobs.answers(batch))
    except (StorageDown, StoreDown) as exc:  # the leader sends it again
        raise Ignore from exc


@task_revoked.connect
def _not_given(sender: Task, request: Any, **_: Any) -> None:
    """Notes that whoever waited knows that it was revoked."""
    if sender.name == result.name:
        BATCH_WORKER.get().batch_jobs.given(submitted_by(request.id))


@shared_task(name="app.tasks.batch.begin")
def begin(batch: str) -> None:
    """Validates the batch's lines, and splits them into parts."""
    BATCH_WORKER.get().batch_jobs.begin(batch)


@shared_task(name="app.tasks.batch.answer")
def answer(batch: str, part: int, ticket: int) -> None:
    """Answers the lines of a part, unless a later ticket for it was sent."""
    BATCH_WORKER.get().answer(batch, part, ticket)


@shared_task(name="app.tasks.batch.finish")
def finish(batch: str) -> None:
    """Writes one output and one error file with the results of all parts."""
    BATCH_WORKER.get().batch_jobs.finish(batch)


@shared_task(name="app.tasks.batch.notify")
def notify(batch: str) -> None:
    """Tells the webhook that the batch has ended."""
    BATCH_WORKER.get().batch_jobs.notify(batch)
