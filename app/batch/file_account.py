"""The bytes of files that are counted for each key and for all, and those of the files."""

import asyncio
from collections.abc import Mapping

from app.batch.records import decode_file
from app.ids import FileId, KeyId
from app.keys import Keys
from app.store import Wire
from app.tenants.directory import Directory
from app.tenants.stored_audit import Bytes, recounted

_AT_ONCE = 200  # records


_ALL = "*"  # as in `Keys.file_bytes_in_all`


class FileAccounts:
    kind = "files"

    def __init__(self, wire: Wire, keys: Keys, directory: Directory) -> None:
        self._wire, self._keys, self._directory = wire, keys, directory

    async def read(self) -> Mapping[str, Bytes]:
        (flat,) = await self._wire.execute([("HGETALL", self._keys.key_owners())])
        owners = {KeyId(id_.decode()) for id_ in flat[::2]} | {KeyId("")}
        owners |= {key.owner for key in self._directory.registry.keys.values()}
        sizes: dict[str, Bytes] = {owner: await self._of(owner) for owner in owners}
        (count,) = await self._wire.execute([("GET", self._keys.file_bytes_in_all())])
        there = sum(one.there for one in sizes.values())
        return sizes | {_ALL: Bytes(None if count is None else int(count), there)}

    async def _of(self, owner: KeyId) -> Bytes:
        keys = self._keys
        count, ids = await self._wire.execute(
            [("GET", keys.file_bytes(owner)), ("ZRANGE", keys.files_of(owner), 0, -1)]
        )
        there = 0
        for i in range(0, len(ids), _AT_ONCE):
            records = await self._wire.execute(
                [("GET", keys.file(FileId(id_.decode()))) for id_ in ids[i : i + _AT_ONCE]]
            )
            there += sum(decode_file(raw).counted for raw in records if raw is not None)
            await asyncio.sleep(0)
        return Bytes(None if count is None else int(count), there)

    async def correct(self, account: str, actual: Bytes) -> bool:
        return await recounted(self._wire, self._keys.file_bytes(KeyId(account)), "", actual)
