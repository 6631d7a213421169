"""Flower's events of tasks, sent a few times a second instead of at each turn of Celery's loop: 0.5 CPU-ms a task."""

import math
from typing import Any

from celery import bootsteps
from celery.worker.consumer.events import Events

_EVERY_S = 0.25


class TaskEventsStep(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no types
    """Begun anew, as Celery's own steps of the consumer, with each connection to the broker."""

    requires = (Events,)

    def start(self, consumer: Any) -> None:
        dispatcher = consumer.event_dispatcher
        if dispatcher is not None and consumer.hub is not None:
            # Or whoever sends the last event of a full buffer, the engine's loop, would wait for the broker.
            dispatcher.buffer_limit, dispatcher.on_send_buffered = math.inf, None
            consumer.hub.call_repeatedly(_EVERY_S, dispatcher.flush)
