"""Stored chats of one API key: complete kept answers, found by id, model and metadata."""

from collections.abc import Callable
from itertools import islice

from app.api.resumable.long_strings import LongStrings
from app.api.resumable.store import MOST_BYTES, Found, check_room, shortened, whole
from app.errors import RequestNotFound
from app.ids import KeyId, RequestId
from app.keys import Keys
from app.messages.kept import KeptRequest, StoredChat, decode_kept, decode_stored_chat
from app.messages.wire import encode
from app.store import Wire
from app.store.page import page
from app.store.scripts import SET_CHAT
from app.tenants.stored_bytes import Quota

_PAGE = 256  # ids read at once


class ChatIndex:
    """All methods raise StoreDown."""

    def __init__(
        self,
        wire: Wire,
        keys: Keys,
        bytes_per_key: int = MOST_BYTES,
        bytes_in_all: int = MOST_BYTES,
        strings: LongStrings | None = None,
    ) -> None:
        """`strings`: as `ResumableStore` has them."""
        self._wire, self._keys, self._strings = wire, keys, strings
        self._most = bytes_per_key, bytes_in_all

    async def find(self, request: RequestId, key: KeyId, *, short: bool = False) -> tuple[Found, StoredChat]:
        """`short`: long strings are a hyphen.

        Raises: RequestNotFound, also for a chat that isn't complete yet, or failed; StorageDown, MediaLost.
        """
        fields, score = await self._wire.execute(
            [
                ("HMGET", self._keys.kept(request), "record", "epoch", "chat"),
                ("ZSCORE", self._keys.chats_of(key), request),
            ]
        )
        record, epoch, chat = fields
        if score is None or record is None or chat is None or (kept_request := decode_kept(record)).key != key:
            raise _unknown(request)
        kept_request = shortened(kept_request) if short else await whole(kept_request, self._strings)
        return Found(kept_request, int(epoch)), decode_stored_chat(chat)

    async def page(
        self, key: KeyId, after: str | None, limit: int, *, newest_first: bool, is_match: Callable[[StoredChat], bool]
    ) -> tuple[list[RequestId], bool]:
        """The ids after `after`, and whether there are more. Raises: RequestError when `after` is not stored."""
        name = self._keys.chats_of(key)
        matches: list[RequestId] = []
        lost_ids: list[str] = []
        ids, more = [] if after is None else [after], True
        while more and len(matches) <= limit:
            ids, more = await page(self._wire, name, ids, _PAGE, newest_first=newest_first)
            chats = await self._wire.execute([("HGET", self._keys.kept(RequestId(id_)), "chat") for id_ in ids])
            lost_ids += [id_ for id_, chat in zip(ids, chats, strict=True) if chat is None]
            fitting = (
                RequestId(id_)
                for id_, chat in zip(ids, chats, strict=True)
                if chat is not None and is_match(decode_stored_chat(chat))
            )
            matches += islice(fitting, limit + 1 - len(matches))
        if lost_ids:
            await self._wire.execute([("ZREM", name, *lost_ids)])
        return matches[:limit], len(matches) > limit

    async def change(self, request: RequestId, chat: StoredChat, quota: Quota | None = None) -> None:
        """`quota`: None: the usual one of an API key. Raises: RequestNotFound; KeptFull, if it takes more bytes."""
        names = self._keys.kept(request), *self._keys.kept_account()
        per_key, in_all = self._most
        values = request, encode(chat), per_key if quota is None else quota.most, in_all
        (reply,) = await self._wire.execute([("EVAL", SET_CHAT, len(names), *names, *values)])
        if not reply:
            raise _unknown(request)
        check_room(*reply)

    async def remove(self, kept_request: KeptRequest) -> None:
        await self._wire.execute([("ZREM", self._keys.chats_of(kept_request.key), kept_request.id)])


def _unknown(request: RequestId) -> RequestNotFound:
    return RequestNotFound(f"No chat completion with the id '{request}' is stored; they are deleted after a time.")
