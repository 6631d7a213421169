"""The records of files, in Redis. All methods raise StoreDown."""

from typing import NamedTuple

import msgspec

from app.batch.records import RECORD, StoredFile, decode_file
from app.errors import FileGone, FileQuotaUsed
from app.ids import FileId, KeyId
from app.keys import Keys
from app.messages.wire import encode
from app.store import Wire, clock
from app.store.page import FEW, page
from app.store.scripts import ADD_FILE, REMOVE_FILE
from app.telemetry import logger
from app.tenants.stored_bytes import Quota

log = logger(__name__)

_AT_ONCE = 256  # records that are read: more of them would hold up the event loop
_MOST = 100_000  # files of one key
_DELETE = "Delete some that are not needed any more."


class Used(NamedTuple):
    """Bytes of files, with their records."""

    own: int  # of a key
    in_all: int

    def refusal(self, more: int, quota: Quota, param: str = "file") -> FileQuotaUsed | None:
        """The error that there is no room for `more` bytes; None: there is."""
        if self.own + more > quota.most:
            whose = "The files of your tenant" if quota.of_tenant else "Your files"
            used_bytes, most = self.own + quota.others, quota.most + quota.others
            return FileQuotaUsed(
                f"{whose} have {used_bytes} of the {most} bytes that they may have. {_DELETE}", param=param
            )
        if self.in_all + more > quota.in_all:
            return FileQuotaUsed("The files of all clients have the bytes that they may have here.", param=param)
        return None


class FileStore:
    def __init__(self, wire: Wire, keys: Keys) -> None:
        self._wire, self._keys = wire, keys

    async def add(self, file: StoredFile, quota: Quota | None = None) -> None:
        """Adds a file whose bytes are in the storage. `quota`: of all files of its key; None: any number of bytes.

        Raises: FileQuotaUsed.
        """
        created_at = clock.now()  # with fractions, to keep the order within a second
        most, in_all = ("", "") if quota is None else (quota.most, quota.in_all)
        values = file.id, encode(file), file.size, created_at, file.expires or "", most, _MOST
        prefix = self._keys.file(FileId(""))
        command = ("EVAL", ADD_FILE, 5, *self._names(file), *values, prefix, RECORD, in_all)
        (usage,) = await self._wire.execute([command])
        if usage is not None and quota is not None:
            own, files, in_all = usage
            full = FileQuotaUsed(f"There are {files} files. {_DELETE}")
            raise Used(own, in_all).refusal(file.counted, quota) or full

    async def used(self, key: KeyId) -> Used:
        """Nothing of files of older versions, until the key's next one is added."""
        own, in_all = await self._wire.execute(
            [("GET", self._keys.file_bytes(key)), ("GET", self._keys.file_bytes_in_all())]
        )
        return Used(int(own or 0), int(in_all or 0))

    async def check_room(self, key: KeyId, more: int, quota: Quota, param: str = "file") -> None:
        """`param`: of the request. Raises: FileQuotaUsed, if the key's files can't have `more` bytes."""
        if (refusal := (await self.used(key)).refusal(more, quota, param)) is not None:
            raise refusal

    async def find(self, file: FileId, key: KeyId | None) -> StoredFile:
        """`key`: its API key; None: any. Raises: FileGone, also when it has expired."""
        files = await self._understood([file])
        if not files or (key is not None and files[0].key != key) or _is_over(files[0]):
            raise FileGone(f"No such File object: {file[:100]}")
        return files[0]

    async def owned(
        self, key: KeyId, after: str, limit: int, *, newest_first: bool, purpose: str | None = None
    ) -> tuple[list[StoredFile], bool]:
        """Up to `limit` of the key's files after the id `after`, and whether there are more. Raises: RequestError."""
        matches: list[StoredFile] = []
        ids, more, size = [after] if after else [], True, max(limit, FEW)
        while more and len(matches) <= limit:
            ids, more = await page(self._wire, self._keys.files_of(key), ids, size, newest_first=newest_first)
            files = await self._understood([FileId(id_) for id_ in ids])
            matches += [f for f in files if not _is_over(f) and purpose in (None, f.purpose)]
        return matches[:limit], len(matches) > limit

    async def all_of(self, key: KeyId) -> list[StoredFile]:
        """All of the key's files, also expired ones that are not deleted yet."""
        (ids,) = await self._wire.execute([("ZRANGE", self._keys.files_of(key), 0, -1)])
        return await self._understood([FileId(id_.decode()) for id_ in ids], self._keys.files_of(key))

    async def _understood(self, ids: list[FileId], index: str = "") -> list[StoredFile]:
        """Reads those of `ids` that this version understands. What is gone leaves `index`."""
        files: list[StoredFile] = []
        lost_ids: list[FileId] = []
        for at in range(0, len(ids), _AT_ONCE):
            part = ids[at : at + _AT_ONCE]
            raws = await self._wire.execute([("GET", self._keys.file(id_)) for id_ in part])
            for id_, raw in zip(part, raws, strict=True):
                try:
                    if raw is None:
                        lost_ids.append(id_)
                    else:
                        files.append(decode_file(raw))
                except msgspec.MsgspecError as exc:  # the others can be listed, and expire
                    log.error("file_not_understood", file=id_, error=str(exc))
        if lost_ids and index:
            await self._wire.execute([("ZREM", index, *lost_ids)])
        return files

    async def remove(self, file: StoredFile) -> None:
        """Removes the record; its bytes in the storage may be deleted then."""
        await self._wire.execute([("EVAL", REMOVE_FILE, 5, *self._names(file), file.id, RECORD)])

    def _names(self, file: StoredFile) -> tuple[str, ...]:
        """The keys of `add_file.lua` and `remove_file.lua`."""
        keys = self._keys
        sums = keys.file_bytes(file.key), keys.file_bytes_in_all()
        return keys.file(file.id), keys.files_of(file.key), keys.files_expiring(), *sums

    async def expired(self, now: float) -> list[StoredFile]:
        """Up to 100 files that expired before `now`, seconds since the epoch."""
        command = ("ZRANGE", self._keys.files_expiring(), "-inf", now, "BYSCORE", "LIMIT", 0, 100)
        (ids,) = await self._wire.execute([command])
        return await self._understood([FileId(id_.decode()) for id_ in ids], self._keys.files_expiring())


def _is_over(file: StoredFile) -> bool:
    return file.expires is not None and file.expires <= clock.now()
