"""Deleting expired files, and unfinished ones: every API replica does so, which does no harm."""

import asyncio
from collections.abc import Awaitable, Callable

from app.batch.file_store import FileStore
from app.batch.records import StoredFile
from app.batch.storage import Storage, in_thread
from app.errors import StorageDown
from app.running.loops import keep
from app.store import clock
from app.telemetry import logger

log = logger(__name__)

_EVERY_S = 60.0
_OTHERS_EVERY_S = 600.0
_UNFINISHED_EVERY_S = 3600.0
_UNFINISHED_S = 86_400.0  # since the last byte of it: nobody writes it any more


async def forget(storage: Storage, files: FileStore, file: StoredFile) -> None:
    """Deletes the bytes first: while there is a record, a failure is repaired later. Raises: StorageDown, StoreDown."""
    await in_thread(storage.delete, file.path)
    await files.remove(file)


class FileExpiry:
    def __init__(
        self, storage: Storage, media: Storage, files: FileStore, others: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """`others`: sweeps what has no record of its own."""
        self._storage, self._media, self._files, self._others = storage, media, files, others

    async def run(self) -> None:
        """Removes expired and unfinished files, until cancelled."""
        async with asyncio.TaskGroup() as both:
            both.create_task(keep("files_not_swept", self.sweep, _EVERY_S))
            if self._others is not None:
                both.create_task(keep("long_strings_not_swept", self._others, _OTHERS_EVERY_S))
            both.create_task(keep("unfinished_files_not_swept", self.sweep_unfinished, _UNFINISHED_EVERY_S))

    async def sweep(self) -> None:
        """Raises: StorageDown, after all files that can be deleted are; StoreDown."""
        failure: StorageDown | None = None
        while failure is None and (files := await self._files.expired(clock.now())):
            for file in files:
                try:
                    await forget(self._media if file.is_painted else self._storage, self._files, file)
                except StorageDown as exc:
                    failure = exc
        if failure is not None:
            raise failure

    async def sweep_unfinished(self) -> None:
        """Deletes what was being written when a process died. Raises: StorageDown."""
        for storage in (self._storage, self._media):
            if count := await in_thread(storage.delete_unfinished, clock.now() - _UNFINISHED_S):
                log.warning("unfinished_files_deleted", files=count)
