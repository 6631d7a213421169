"""What is known of files, in Redis. All methods raise StoreDown."""

import time

from app.batch.records import StoredFile, decode_file
from app.errors import FileGone
from app.ids import FileId
from app.keys import Keys
from app.messages import encode
from app.store import Wire


async def page(wire: Wire, members: str, after: str, limit: int, *, newest_first: bool) -> tuple[list[str], bool]:
    """Up to `limit` members of a sorted set behind `after`, and whether there are more. An unknown `after`: none."""
    rank, part = ("ZREVRANK", ("REV",)) if newest_first else ("ZRANK", ())
    first = 0
    if after:
        (position,) = await wire.execute([(rank, members, after)])
        if position is None:
            return [], False
        first = position + 1
    (found,) = await wire.execute([("ZRANGE", members, first, first + limit, *part)])
    names = [name.decode() for name in found]
    return names[:limit], len(names) > limit


class FileShelf:
    def __init__(self, wire: Wire, keys: Keys) -> None:
        self._wire, self._keys = wire, keys

    async def add(self, file: StoredFile) -> None:
        """Its bytes are in the storage already."""
        keys = self._keys
        await self._wire.execute(
            [
                ("SET", keys.file(file.id), encode(file)),
                ("ZADD", keys.files_of(file.key), time.time(), file.id),  # in their order, also within a second
                *([("ZADD", keys.files_expiring(), file.expires, file.id)] if file.expires else []),
            ]
        )

    async def find(self, file: FileId, key: str | None) -> StoredFile:
        """Of that API key; None: of any. Raises: FileGone, also when it has expired."""
        found = (await self._read([file]))[0]
        if found is None or (key is not None and found.key != key) or _is_over(found):
            raise FileGone(f"No such File object: {file[:100]}")
        return found

    async def owned(
        self, key: str, after: str, limit: int, *, newest_first: bool, purpose: str | None = None
    ) -> tuple[list[StoredFile], bool]:
        """Up to `limit` of them behind `after`, and whether there are more."""
        found: list[StoredFile] = []
        more = True
        while more and len(found) <= limit:
            ids, more = await page(self._wire, self._keys.files_of(key), after, limit, newest_first=newest_first)
            files = await self._read([FileId(id_) for id_ in ids])
            found += [f for f in files if f is not None and not _is_over(f) and purpose in (None, f.purpose)]
            after = ids[-1] if ids else ""
        return found[:limit], len(found) > limit

    async def _read(self, ids: list[FileId]) -> list[StoredFile | None]:
        found = await self._wire.execute([("GET", self._keys.file(id_)) for id_ in ids])
        return [None if raw is None else decode_file(raw) for raw in found]

    async def remove(self, file: StoredFile) -> None:
        """After this its bytes are nobody's."""
        keys = self._keys
        await self._wire.execute(
            [
                ("UNLINK", keys.file(file.id)),
                ("ZREM", keys.files_of(file.key), file.id),
                ("ZREM", keys.files_expiring(), file.id),
            ]
        )

    async def expired(self, now: float) -> list[StoredFile]:
        """Some of them."""
        command = ("ZRANGE", self._keys.files_expiring(), "-inf", now, "BYSCORE", "LIMIT", 0, 100)
        (ids,) = await self._wire.execute([command])
        found = await self._read([FileId(id_.decode()) for id_ in ids])
        gone = [id_ for id_, file in zip(ids, found, strict=True) if file is None]
        if gone:  # it was being removed when Redis went away
            await self._wire.execute([("ZREM", self._keys.files_expiring(), *gone)])
        return [file for file in found if file is not None]


def _is_over(file: StoredFile) -> bool:
    return file.expires is not None and file.expires <= time.time()
