"""The bootstep of `celery -A app worker -Q batch`: a worker without an engine, for the lines of batches."""

import os
from typing import Any

from celery import bootsteps
from celery.signals import before_task_publish
from celery.worker.components import Timer

from app.addresses.host_address import address_towards
from app.batch.fair_share import PARTS
from app.celery import app, settings
from app.errors import XylemError
from app.ids import BATCH_QUEUE
from app.tasks import batch as tasks
from app.telemetry import logger
from workers.hangup import end_on_hangup
from workers.worker_port import listening

log = logger(__name__)

_OTHERS = 16  # threads for tasks that begin and finish batches
_NICE = 5  # online requests go first on this machine's CPU, too


class BatchStep(bootsteps.StartStopStep):
    """Started before the consumer, and stopped when the last task has ended."""

    requires = (Timer,)

    def __init__(self, worker: Any, **_: Any) -> None:
        queues = worker.app.amqp.queues
        self.enabled = list(queues.consume_from) == [BATCH_QUEUE]
        if self.enabled:
            worker.options |= {"without_mingle": True, "without_gossip": True}
            worker.concurrency = worker.min_concurrency = PARTS + _OTHERS
            for queue in queues.consume_from.values():
                queue.no_ack = True  # the leader sends lost tasks again

    def start(self, _worker: Any) -> None:
        # Not at the top: every worker loads this module, and those with an engine know nothing of the API.
        from app.dispatch.runtime import Deployment
        from workers.batch.batch_worker import BatchWorker

        end_on_hangup()
        os.nice(_NICE)
        self.port = listening(settings.address or address_towards(settings.redis_url), settings.worker_port)
        try:
            at = "" if self.port is None else self.port.at
            self.batch_worker = BatchWorker(Deployment.read(settings), at)
            self.batch_worker.start()
        except XylemError as exc:
            log.critical("worker_not_started", reason=exc.message)
            raise SystemExit(1) from exc
        tasks.BATCH_WORKER.set(self.batch_worker)
        before_task_publish.connect(_hide_arguments)
        if self.port is not None:
            self.port.loaded(self.batch_worker)
        log.info("batch_worker_ready", id=self.batch_worker.serving.dispatcher.api, files=settings.files_url)

    def close(self, _worker: Any) -> None:
        """SIGTERM."""
        if hasattr(self, "batch_worker"):
            self.batch_worker.drain()

    def stop(self, worker: Any) -> None:
        if hasattr(self, "batch_worker"):
            worker.pool.stop()
            self.batch_worker.close()
            if self.port is not None:
                self.port.close()
            log.info("batch_worker_stopped")

    def terminate(self, worker: Any) -> None:
        """A second SIGTERM: running lines are given up."""
        if hasattr(self, "batch_worker"):
            self.batch_worker.stop_parts()
        self.stop(worker)


def _hide_arguments(sender: str, headers: dict[str, Any], **_: Any) -> None:
    """Hides from Flower what the tasks of others get that are sent here: they come after a batch, with its answers."""
    if sender not in app.tasks:
        headers |= {"argsrepr": "…", "kwargsrepr": "…"}


app.steps["worker"].add(BatchStep)
