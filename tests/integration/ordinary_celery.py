"""A Celery app that knows nothing of Xylem but the task's name: `celery -A tests.integration.ordinary_celery`."""

import os

from celery import Celery
from redis import Redis

from app.keys import PRIORITY_STEPS
from app.messages.celery_message import DECODE_TASK

url = os.environ["ORDINARY_REDIS"]
app = Celery("ordinary", broker=url)
app.conf.broker_transport_options = {"global_keyprefix": "test:", "priority_steps": list(PRIORITY_STEPS)}
app.conf.worker_send_task_events = True


@app.task(name=DECODE_TASK, bind=True)
def decode(self, request: str, attempt: int) -> None:  # type: ignore[no-untyped-def]
    values = [
        request,
        str(attempt),
        self.request.id,
        str(self.request.retries),
        self.request.delivery_info["routing_key"],
    ]
    Redis.from_url(url).rpush("seen", *values)
