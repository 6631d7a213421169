"""The tasks of batches, for the queue `batch` of the batch workers.

Their arguments are ids: prompts and answers are in files. A task delivered twice does nothing the second time.
"""

from typing import Protocol

from celery import Task, shared_task

from app.runner.process_slot import ProcessSlot


class BatchJobs(Protocol):
    """Work on a whole batch. All methods block."""

    def submit(self, path: str, endpoint: str, window: str, metadata: dict[str, str] | None, task: str) -> str: ...
    def begin(self, batch: str) -> None: ...
    def finish(self, batch: str) -> None: ...
    def notify(self, batch: str) -> None: ...


class BatchWorker(Protocol):
    """A batch worker, as its tasks use it."""

    @property
    def batch_jobs(self) -> BatchJobs: ...

    def answer(self, batch: str, part: int, ticket: int) -> None:
        """Blocks."""

    def revoke(self, tasks: list[str]) -> None:
        """Cancels the batches that these tasks have submitted. Doesn't wait for it."""


BATCH_WORKER = ProcessSlot[BatchWorker]("a worker of the queue 'batch'")


@shared_task(bind=True, name="app.tasks.batch.submit")
def submit(
    self: Task, path: str, endpoint: str, completion_window: str = "24h", metadata: dict[str, str] | None = None
) -> str:
    """Creates a batch of the file `path` in the storage (XYLEM_FILES); returns the batch's id."""
    return BATCH_WORKER.get().batch_jobs.submit(path, endpoint, completion_window, metadata, self.request.id)


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
