"""Celery's `revoke` and `terminate`, and so Flower's Terminate: they end requests and batches.

Celery itself would only keep a task from beginning, or kill the process of a pool that has processes. Here each request
and each batch has its own end, so both commands do the same: a request ends with one error, a batch is cancelled. What
they name is the id of any of its tasks; of a request, its own id, too.
"""

from functools import partial
from typing import Any

from celery.utils.functional import maybe_list
from celery.worker import state as worker_state
from celery.worker.control import control_command

from app.ids import request_of
from app.runner.runner import RUNNER
from app.tasks.batch import BATCH_WORKER
from app.telemetry import logger

log = logger(__name__)


@control_command(name="revoke", variadic="task_id", signature="[id1 [id2 [... [idN]]]]")  # type: ignore[untyped-decorator]  # Celery has no types
def revoke(_state: Any, task_id: str | list[str], **_: Any) -> dict[str, str]:
    """End requests and batches by the id of a task, whether it runs or not."""
    tasks = sorted({str(task) for task in maybe_list(task_id) or []})
    requests = {request_of(task) for task in tasks}
    worker_state.revoked.update([*tasks, *requests])
    log.info("tasks_revoked", tasks=tasks)
    if RUNNER:
        runner = RUNNER.get()
        runner.soon(partial(runner.revoke, requests))
    if BATCH_WORKER:
        BATCH_WORKER.get().revoke(tasks)
    return {"ok": f"tasks {', '.join(tasks)} flagged as revoked"}


@control_command(  # type: ignore[untyped-decorator]
    name="terminate", variadic="task_id", args=[("signal", str)], signature="<signal> [id1 [id2 [... [idN]]]]"
)
def terminate(state: Any, signal: str, task_id: str | list[str], **_: Any) -> dict[str, str]:
    """End requests and batches, as `revoke` does; no process gets the signal."""
    del signal
    outcome: dict[str, str] = revoke(state, task_id)
    return outcome
