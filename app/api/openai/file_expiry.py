"""Deleting expired files: every API replica does so, which does no harm."""

from app.batch.file_store import FileStore
from app.batch.records import StoredFile
from app.batch.storage import Storage, in_thread
from app.errors import StorageDown
from app.loops import keep
from app.store import clock

_EVERY_S = 60.0


async def forget(storage: Storage, files: FileStore, file: StoredFile) -> None:
    """Deletes the bytes first: while there is a record, a failure is repaired later. Raises: StorageDown, StoreDown."""
    await in_thread(storage.delete, file.path)
    await files.remove(file)


class FileExpiry:
    def __init__(self, storage: Storage, media: Storage, files: FileStore) -> None:
        self._storage, self._media, self._files = storage, media, files

    async def run(self) -> None:
        """Until cancelled."""
        await keep("files_not_swept", self.sweep, _EVERY_S)

    async def sweep(self) -> None:
        """Raises: StorageDown, after all files that can be deleted are; StoreDown."""
        failed: StorageDown | None = None
        while failed is None and (expired := await self._files.expired(clock.now())):
            for file in expired:
                try:
                    await forget(self._media if file.is_painted else self._storage, self._files, file)
                except StorageDown as exc:
                    failed = exc
        if failed is not None:
            raise failed
