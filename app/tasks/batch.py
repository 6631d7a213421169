"""The tasks of batches, in the queue `batch`: of workers that have no engine, and ask those that have one.

Their arguments are ids: prompts and answers are in files. Each may come twice; the second time does nothing.
"""

from typing import Protocol

from celery import Task, shared_task

from app.runner.process_slot import ProcessSlot


class BatchJobs(Protocol):
    """What is done with a whole batch. All block."""

    def submit(self, path: str, endpoint: str, window: str, metadata: dict[str, str] | None, task: str) -> str: ...
    def begin(self, batch: str) -> None: ...
    def finish(self, batch: str) -> None: ...
    def notify(self, batch: str) -> None: ...


class BatchWorker(Protocol):
    """What a batch worker does."""

    @property
    def batch_jobs(self) -> BatchJobs: ...

    def answer(self, batch: str, part: int, ticket: int) -> None:
        """Blocks."""


BATCH_WORKER = ProcessSlot[BatchWorker]("a worker of the queue 'batch'")


@shared_task(bind=True, name="app.tasks.batch.submit")
def submit(
    self: Task, path: str, endpoint: str, completion_window: str = "24h", metadata: dict[str, str] | None = None
) -> str:
    """Begins a batch of a file that lies in the storage (XYLEM_FILES) under `path`; returns the batch's id."""
    return BATCH_WORKER.get().batch_jobs.submit(path, endpoint, completion_window, metadata, self.request.id)


@shared_task(name="app.tasks.batch.begin")
def begin(batch: str) -> None:
    """Validates its lines, and lays out its parts."""
    BATCH_WORKER.get().batch_jobs.begin(batch)


@shared_task(name="app.tasks.batch.answer")
def answer(batch: str, part: int, ticket: int) -> None:
    """Has the lines of a part answered, if no later ticket for it was sent."""
    BATCH_WORKER.get().answer(batch, part, ticket)


@shared_task(name="app.tasks.batch.finish")
def finish(batch: str) -> None:
    """Makes one output and one error file of what all parts have."""
    BATCH_WORKER.get().batch_jobs.finish(batch)


@shared_task(name="app.tasks.batch.notify")
def notify(batch: str) -> None:
    """Tells the webhook of its end."""
    BATCH_WORKER.get().batch_jobs.notify(batch)
