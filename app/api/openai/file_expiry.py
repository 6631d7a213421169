"""Files whose time is over: every API replica looks for them, and it does no harm that all do."""

import asyncio

from starlette.concurrency import run_in_threadpool

from app.batch.file_store import FileStore
from app.batch.records import StoredFile
from app.batch.storage import Storage
from app.errors import StorageDown, XylemError
from app.store import clock
from app.telemetry import logger

log = logger(__name__)

_EVERY_S = 60.0


async def forget(storage: Storage, files: FileStore, file: StoredFile) -> None:
    """Its bytes first: as long as there is a record, somebody will look for them. Raises: StorageDown, StoreDown."""
    await run_in_threadpool(storage.delete, file.path)
    await files.remove(file)


class FileExpiry:
    def __init__(self, storage: Storage, files: FileStore) -> None:
        self._storage, self._files = storage, files

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.sweep()
            except XylemError as exc:
                log.warning("files_not_swept", error=exc.message)
            except Exception:
                log.exception("files_not_swept")
            await asyncio.sleep(_EVERY_S)

    async def sweep(self) -> None:
        """Raises: StorageDown, when all else is gone that can go; StoreDown."""
        stays: StorageDown | None = None
        while stays is None and (expired := await self._files.expired(clock.now())):
            for file in expired:
                try:
                    await forget(self._storage, self._files, file)
                except StorageDown as exc:
                    stays = exc
        if stays is not None:
            raise stays
