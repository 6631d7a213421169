"""Notes in the store of which blocks are used, by which the least used ones are removed."""

import logging
import threading
from contextlib import suppress
from queue import Empty, Full, Queue

from app.kv_store.block_store import BlockStore

log = logging.getLogger(__name__)

_MOST = 1_000  # requests, that wait


class UseNotes:
    """Made in a thread of their own: a bucket takes milliseconds for each block."""

    def __init__(self, store: BlockStore) -> None:
        self._store, self._failed = store, False
        self._due: Queue[list[tuple[str, float]]] = Queue(_MOST)
        threading.Thread(target=self._run, name="kv-store-notes", daemon=True).start()

    def add(self, due: list[tuple[str, float]]) -> None:
        """Adds notes, by the blocks' paths. Drops them if the store is too slow.

        The blocks then seem older than they are.
        """
        if due:
            with suppress(Full):
                self._due.put_nowait(due)

    def end(self) -> None:
        """Drops what is not noted yet, and ends. The thread may hang: it isn't waited for."""
        with suppress(Empty):
            while True:
                self._due.get_nowait()
        self._due.put([])

    def _run(self) -> None:
        while due := self._due.get():
            try:
                for path, when in due:
                    self._store.touch(path, when)
                self._failed = False
            except Exception as exc:  # noqa: BLE001 (a bucket's client library has errors of its own)
                if not self._failed:
                    self._failed = True
                    log.warning("It is not noted which blocks of KV are used: %r", exc)
