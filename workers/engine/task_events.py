"""Flower's events of tasks, sent a few times a second instead of at each turn of Celery's loop: 0.5 CPU-ms a task."""

import math
from typing import Any

from celery import bootsteps
from celery.worker.consumer.events import Events

from workers.engine.task_room import ROOM

_EVERY_S = 0.25


class TaskEventsStep(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no types
    """Begun anew, as Celery's own steps of the consumer, with each connection to the broker."""

    requires = (Events,)
    _last: Any = None

    def start(self, consumer: Any) -> None:
        dispatcher = consumer.event_dispatcher
        if dispatcher is None or consumer.hub is None:
            return
        if self._last is not None:  # Celery takes over what it could not send, and not what it had yet to send
            dispatcher._group_buffer["task"][:0] = self._last._group_buffer.pop("task", [])  # noqa: SLF001 (Celery has no other way)
        self._last = dispatcher
        # Or whoever sends the last event of a full buffer, the engine's loop, would wait for the broker. Celery's own
        # tasks tell of their end by an event.
        dispatcher.buffer_limit, dispatcher.on_send_buffered = math.inf, ROOM.wake_if_full
        consumer.hub.call_repeatedly(_EVERY_S, dispatcher.flush)

    def shutdown(self, consumer: Any) -> None:
        if consumer.event_dispatcher is not None:
            consumer.event_dispatcher.flush(errors=False)
