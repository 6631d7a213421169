"""Wakes Celery's loop when a task ends: it takes no messages while a worker has as many as it may have."""

import os
from typing import Any

from celery import bootsteps
from celery.worker import state
from celery.worker.consumer.tasks import Tasks

from app.broker_channel import AtOnce

_BESIDE = 3  # tasks that may end at the same moment, in other threads


class _Room:
    """The room for tasks in this process; its loop may be any connection's."""

    def __init__(self) -> None:
        self._fd = -1
        self._limit = 0

    def watch(self, consumer: Any) -> None:
        if self._fd < 0:  # not before: a fork would share it with its parent
            self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._limit = consumer.pool.num_processes  # which is what Celery holds the tasks to
        AtOnce.room = self._left
        consumer.hub.add_reader(self._fd, self._woken)

    def unwatch(self, consumer: Any) -> None:
        consumer.hub.remove(self._fd)

    def _left(self) -> int:
        return self._limit - len(state.reserved_requests)

    def wake_if_full(self) -> None:
        """Wakes Celery after a task has ended: it may have seen no room just before that. From any thread."""
        if len(state.reserved_requests) >= self._limit - _BESIDE and self._fd >= 0:
            os.eventfd_write(self._fd, 1)

    def _woken(self) -> None:
        os.eventfd_read(self._fd)


ROOM = _Room()


class TaskRoomStep(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no types
    """Begun anew with each connection to the broker."""

    requires = (Tasks,)

    def start(self, consumer: Any) -> None:
        ROOM.watch(consumer)

    def stop(self, consumer: Any) -> None:
        ROOM.unwatch(consumer)
