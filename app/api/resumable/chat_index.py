"""Stored chats of one API key: complete kept answers, found by id, model and metadata."""

from collections.abc import Callable
from itertools import islice

from app.api.resumable.store import Found
from app.errors import RequestError, RequestNotFound
from app.ids import KeyId, RequestId
from app.keys import Keys
from app.messages import KeptRequest, StoredChat, decode_kept, decode_stored_chat, encode
from app.store import SET_CHAT, Wire

_PAGE = 256  # ids read at once


class ChatIndex:
    """All methods raise StoreDown."""

    def __init__(self, wire: Wire, keys: Keys) -> None:
        self._wire, self._keys = wire, keys

    async def find(self, request: RequestId, key: KeyId) -> tuple[Found, StoredChat]:
        """Raises: RequestNotFound, also for a chat that isn't complete yet, or failed."""
        fields, listed = await self._wire.execute(
            [
                ("HMGET", self._keys.kept(request), "record", "epoch", "chat"),
                ("ZSCORE", self._keys.chats_of(key), request),
            ]
        )
        record, epoch, chat = fields
        if listed is None or record is None or chat is None or (kept := decode_kept(record)).key != key:
            raise _unknown(request)
        return Found(kept, int(epoch)), decode_stored_chat(chat)

    async def page(
        self, key: KeyId, after: str | None, limit: int, *, newest_first: bool, wanted: Callable[[StoredChat], bool]
    ) -> tuple[list[RequestId], bool]:
        """The ids after `after`, and whether there are more. Raises: RequestError when `after` is not stored."""
        name = self._keys.chats_of(key)
        at = 0
        if after is not None:
            (place,) = await self._wire.execute([("ZREVRANK" if newest_first else "ZRANK", name, after)])
            if place is None:
                raise RequestError("'after' is not the id of one of your stored chat completions.", param="after")
            at = place + 1
        found: list[RequestId] = []
        gone: list[bytes] = []
        while len(found) <= limit:
            command = ("ZRANGE", name, at, at + _PAGE - 1, *(("REV",) if newest_first else ()))
            (ids,) = await self._wire.execute([command])
            if not ids:
                break
            at += len(ids)
            chats = await self._wire.execute([("HGET", self._keys.kept(id_.decode()), "chat") for id_ in ids])
            gone += [id_ for id_, chat in zip(ids, chats, strict=True) if chat is None]
            fitting = (
                RequestId(id_.decode())
                for id_, chat in zip(ids, chats, strict=True)
                if chat is not None and wanted(decode_stored_chat(chat))
            )
            found += islice(fitting, limit + 1 - len(found))
        if gone:
            await self._wire.execute([("ZREM", name, *gone)])
        return found[:limit], len(found) > limit

    async def change(self, request: RequestId, chat: StoredChat) -> None:
        """Raises: RequestNotFound."""
        names = self._keys.kept(request), *self._keys.kept_account()
        (done,) = await self._wire.execute([("EVAL", SET_CHAT, len(names), *names, request, encode(chat))])
        if not done:
            raise _unknown(request)

    async def remove(self, kept: KeptRequest) -> None:
        await self._wire.execute([("ZREM", self._keys.chats_of(kept.key), kept.id)])


def _unknown(request: RequestId) -> RequestNotFound:
    return RequestNotFound(f"No chat completion with the id '{request}' is stored; they are deleted after a time.")
