"""Reads what SGLang's diffusion workers tell of their steps, as its own server does."""

from collections.abc import Callable
from threading import Event, Thread
from typing import Any

import zmq

_LOOK_MS = 200  # for the end

OnStep = Callable[[str, int, int], None]  # a request's name, how many steps are over, and of how many


class Steps(Thread):
    """A worker that is not connected yet drops what it has to tell: start it before the workers."""

    def __init__(self, endpoint: str, on_step: OnStep) -> None:
        """`on_step` is called in this thread."""
        super().__init__(name="sglang-steps", daemon=True)
        self._endpoint, self._on_step, self._over = endpoint, on_step, Event()

    def run(self) -> None:
        with zmq.Context() as context, context.socket(zmq.PULL) as socket:
            socket.bind(self._endpoint)
            while not self._over.is_set():
                if socket.poll(_LOOK_MS):
                    message: Any = socket.recv_json()
                    name, step, total = message
                    if total:
                        self._on_step(name, int(step), int(total))

    def close(self) -> None:
        self._over.set()
        self.join()
