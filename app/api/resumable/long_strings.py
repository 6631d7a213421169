"""Long strings of JSON that is kept, such as a photo in base64: the media store has them, and Redis refers to them."""

import hashlib
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from app.batch.storage import Storage, in_thread
from app.errors import MediaLost
from app.ids import ConversationId, RequestId
from app.keys import Keys
from app.store import Wire, clock

LONG = 10**6  # bytes of a string
_FOLDER = "kept"
_LOST = (
    "A picture of this request, or another long string, is not in the media store (XYLEM_MEDIA_STORE), "
    "which all API replicas have to share."
)
_MARK = b"\0"  # which no JSON has: what clients send is never taken for a reference
_INSTEAD = b"-"
_CONVERSATION = "conv_"  # other owners are kept requests
_AT_ONCE = 500  # owners
_NEW_S = 600.0  # what was written since may be of an answer that is about to be kept
_BETWEEN = b",:]} \t\r\n"  # begins what is between two strings


class Parted(NamedTuple):
    """JSON with a reference in place of each long string."""

    raw: bytes
    strings: Mapping[str, memoryview]  # by names that other JSON does not give

    @property
    def size(self) -> int:
        """Bytes that are not in Redis."""
        return sum(map(len, self.strings.values()))


def parted(raw: bytes) -> Parted:
    """Strings with an escape stay: base64 has none."""
    if len(raw) <= LONG:
        return Parted(raw, {})
    pieces: list[bytes | memoryview] = []
    strings: dict[str, memoryview] = {}
    view, digest, at = memoryview(raw), "", 0
    for number, (start, end) in enumerate(_long(raw)):
        digest = digest or hashlib.sha256(raw).hexdigest()
        name = f"{digest}-{number}"
        strings[name] = view[start:end]
        pieces += [view[at:start], _MARK, name.encode(), _MARK]
        at = end
    return Parted(b"".join([*pieces, view[at:]]), strings)


def _long(raw: bytes) -> Iterator[tuple[int, int]]:
    """Begin and end of each string of more than LONG bytes: one of each LONG bytes is in it."""
    end = -1
    for inside in range(LONG, len(raw), LONG):
        if inside <= end:
            continue
        start, end = raw.rfind(b'"', 0, inside) + 1, raw.find(b'"', inside)
        if end - start > LONG and raw[start] not in _BETWEEN and raw.find(b"\\", start, end) < 0:
            yield start, end


class LongStrings:
    def __init__(self, storage: Storage) -> None:
        """`storage`: the same for all API replicas."""
        self._storage = storage

    @staticmethod
    def is_whole(raw: bytes) -> bool:
        """Whether the JSON has no reference."""
        return _MARK not in raw

    @staticmethod
    def shortened(raw: bytes) -> bytes:
        """The JSON with a hyphen for each reference."""
        return _INSTEAD.join(raw.split(_MARK)[::2])

    async def put(self, owner: str, strings: Mapping[str, memoryview]) -> None:
        """Writes strings by their names, for who will be kept under the id `owner`. Raises: StorageDown."""
        for name, string in strings.items():
            await in_thread(self._storage.put, f"{_FOLDER}/{owner}/{name}", string)

    async def whole(self, owner: str, raw: bytes) -> bytes:
        """The JSON as it came. Raises: StorageDown; MediaLost, if a string is gone."""
        if self.is_whole(raw):
            return raw
        return await in_thread(self._whole, owner, raw)

    def _whole(self, owner: str, raw: bytes) -> bytes:
        pieces = raw.split(_MARK)
        for number in range(1, len(pieces), 2):
            string = self._storage.get(f"{_FOLDER}/{owner}/{pieces[number].decode()}")
            if string is None:
                raise MediaLost(_LOST)
            pieces[number] = string
        return b"".join(pieces)

    async def delete(self, owner: str, names: Collection[str] = ()) -> None:
        """Deletes these, or all of an owner's. Raises: StorageDown."""
        for path in [f"{_FOLDER}/{owner}/{name}" for name in names] or [f"{_FOLDER}/{owner}"]:
            await in_thread(self._storage.delete, path)

    async def sweep(self, wire: Wire, keys: Keys) -> None:
        """Deletes what owners left that are no longer kept. Raises: StorageDown, StoreDown."""
        owners = await in_thread(self._storage.folders, _FOLDER)
        for start in range(0, len(owners), _AT_ONCE):
            some = owners[start : start + _AT_ONCE]
            records = [
                keys.conversation(ConversationId(one))[0]
                if one.startswith(_CONVERSATION)
                else keys.kept(RequestId(one))
                for one in some
            ]
            replies = await wire.execute([("HEXISTS", record, "record") for record in records])
            for owner, is_kept in zip(some, replies, strict=True):
                if not is_kept and await in_thread(
                    self._storage.written_before, f"{_FOLDER}/{owner}", clock.now() - _NEW_S
                ):
                    await self.delete(owner)
