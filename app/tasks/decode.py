"""The decode task. Its arguments are ids: prompts don't belong in a broker's messages, logs or Flower."""

from celery import shared_task

from app.ids import RequestId
from app.tasks import runner


@shared_task(name="app.tasks.decode.decode")
def decode(request: str, attempt: int) -> None:
    """Runs one request to its terminal event; the answer leaves through the runner's emitter."""
    runner.current().run(RequestId(request), attempt)
