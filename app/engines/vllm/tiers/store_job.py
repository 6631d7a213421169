"""Some blocks on their way from host memory to the store, or back."""

import threading
import time

from vllm.v1.kv_offload.base import OffloadKey
from vllm.v1.kv_offload.tiering.base import TransferJob

PATIENCE_S = 2.0  # with a look-up or a load
_STORE_PATIENCE_S = 30.0


class StoreJob:
    def __init__(self, transfer: TransferJob, offsets: list[int], *, loads: bool) -> None:
        self.id, self.keys, self.context = transfer.job_id, list(transfer.keys), transfer.req_context
        self.offsets, self.loads = offsets, loads
        self.begun = self.moved = time.monotonic()  # when it was submitted, and when it last got on
        self.patience = PATIENCE_S if loads else _STORE_PATIENCE_S
        self.done = 0  # blocks, in order
        self.damaged: list[OffloadKey] = []
        self.lock = threading.Lock()
        self._abandoned = self.is_begun = False

    def begin(self) -> None:
        self.is_begun, self.moved = True, time.monotonic()

    def advance(self) -> None:
        self.done, self.moved = self.done + 1, time.monotonic()

    def abandon(self) -> None:
        """Its memory is not touched any more when this returns."""
        with self.lock:
            self._abandoned = True

    def check(self) -> None:
        """Raises: TimeoutError if it is abandoned."""
        if self._abandoned:
            raise TimeoutError
