"""Conversations in Redis: `conversation:<id>` has owner and metadata, `conversation-items:<id>` the items."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import orjson
from msgspec import Struct

from app.api.resumable.long_strings import LONG, LongStrings, Parted, parted
from app.api.resumable.store import Lost, check_room
from app.errors import ConversationGone, ConversationLocked, RequestError, Saturated, StorageDown
from app.ids import ConversationId, KeyId, RequestId, new_conversation_id
from app.keys import Keys
from app.openai.responses.answer_types import Conversation as ShownConversation
from app.schemas.body import MOST
from app.store import Wire, clock
from app.store.scripts import CONVERSE, END_CONVERSATION, READ_ITEMS, SET_CONVERSATION, UNSAY
from app.tenants.stored_bytes import Quota

_PART_ITEMS, _PART_BYTES = 1024, 2**20  # of a conversation, that are read at once
_TRIES = 5  # to read parts of one time

T = TypeVar("T")


class _Changed(Exception):
    """Items were added or removed between two parts."""


class Conversation(Struct, frozen=True):
    id: ConversationId
    created: int  # seconds since the epoch
    metadata: dict[str, str]

    def shown(self) -> ShownConversation:
        return {"id": self.id, "object": "conversation", "created_at": self.created, "metadata": self.metadata}


class ConversationStore:
    """All methods raise StoreDown; with an id, also ConversationGone, even if the conversation is another client's.

    Those that give or take items also raise StorageDown, if a string of one is too long for Redis.
    """

    def __init__(
        self,
        wire: Wire,
        keys: Keys,
        keep_s: float,
        bytes_per_key: int,
        bytes_in_all: int,
        strings: LongStrings | None = None,
    ) -> None:
        """`keep_s`: how long a conversation is kept after its last change. `strings`: as `ResumableStore` has them."""
        self._wire, self._keys, self._strings = wire, keys, strings
        self._keep_ms = round(keep_s * 1000)
        self._most = bytes_per_key, bytes_in_all

    async def create(
        self, key: KeyId, metadata: dict[str, str], items: Sequence[dict[str, Any]], quota: Quota | None = None
    ) -> Conversation:
        """`quota`: None: the usual one of an API key. Raises: KeptFull."""
        conversation = Conversation(new_conversation_id(), int(clock.now()), metadata)
        record = _record(conversation.created, metadata)
        self._check(await self._converse(conversation.id, key, items, record=record, quota=quota))
        return conversation

    async def find(self, conversation: ConversationId, key: KeyId) -> Conversation:
        own, _ = self._keys.conversation(conversation)
        ((record, owner),) = await self._wire.execute([("HMGET", own, "record", "key")])
        if record is None or owner.decode() != key:
            raise _gone(conversation)
        doc = orjson.loads(record)
        return Conversation(conversation, doc["created"], doc["metadata"])

    async def update(
        self, conversation: ConversationId, key: KeyId, metadata: dict[str, str], quota: Quota | None = None
    ) -> Conversation:
        """`quota`: as in `create`. Raises: KeptFull, if it takes more bytes than before."""
        old_conversation = await self.find(conversation, key)
        names = *self._keys.conversation(conversation), *self._keys.kept_account()
        values = conversation, key, self._keep_ms, _record(old_conversation.created, metadata), *self._bounds(quota)
        (reply,) = await self._wire.execute([("EVAL", SET_CONVERSATION, 4, *names, *values)])
        self._check(reply, conversation)
        return Conversation(conversation, old_conversation.created, metadata)

    async def delete(self, conversation: ConversationId, key: KeyId) -> None:
        await self.find(conversation, key)
        names = *self._keys.conversation(conversation), *self._keys.kept_account()
        if self._strings is not None:
            (size_elsewhere,) = await self._wire.execute([("HGET", names[0], "elsewhere")])
            if size_elsewhere:
                await self._strings.delete(conversation)
        await self._wire.execute([("EVAL", END_CONVERSATION, 4, *names, conversation, key)])

    async def items(self, conversation: ConversationId, key: KeyId, most_bytes: float = math.inf) -> list[bytes]:
        """Each item's JSON, the oldest first. Of more than `most_bytes`, some more than these."""

        async def read() -> list[bytes]:
            raw_items: list[bytes] = []
            async for part in self.parts(conversation, key):
                raw_items += part
                if sum(map(len, raw_items)) > most_bytes:
                    break
            return raw_items

        return await self.unchanged(read)

    async def parts(
        self, conversation: ConversationId, key: KeyId, *, newest_first: bool = False
    ) -> AsyncIterator[list[bytes]]:
        """Items' JSON, some at a time: what others of Redis' clients can wait for, or one item.

        Within `unchanged`: the items have places, which are others when some are added or removed.
        """
        await self.find(conversation, key)
        names, way = self._keys.conversation(conversation), -1 if newest_first else 1
        at, before = -1 if newest_first else 0, None
        while True:
            (reply,) = await self._wire.execute([("EVAL", READ_ITEMS, 2, *names, at, way, _PART_ITEMS, _PART_BYTES)])
            if reply is None:
                raise _gone(conversation)
            changes, part = reply
            if before is not None and changes != before:
                raise _Changed
            before = changes
            if not part:
                return
            async for some in self._whole(conversation, part):
                yield some
            at += way * len(part)

    async def _whole(self, conversation: ConversationId, part: list[bytes]) -> AsyncIterator[list[bytes]]:
        """The items as they came; those with long strings one at a time. Raises: StorageDown, MediaLost."""
        if self._strings is None or all(map(self._strings.is_whole, part)):
            yield part
            return
        for raw in part:
            yield [await self._strings.whole(conversation, raw)]

    async def unchanged(self, read: Callable[[], Awaitable[T]]) -> T:
        """Returns what `read` makes of `parts`, all of one time. Raises: Saturated, and what `read` raises."""
        for _ in range(_TRIES):
            with suppress(_Changed):
                return await read()
        raise Saturated("The items of this conversation change while they are read. Try again later.")

    async def add(
        self,
        conversation: ConversationId,
        key: KeyId,
        items: Sequence[dict[str, Any]],
        quota: Quota | None = None,
    ) -> None:
        """`quota`: as in `create`.

        Raises: KeptFull, ConversationLocked; RequestError when there would be too many.
        """
        self._check(await self._converse(conversation, key, items, quota=quota), conversation)

    async def add_response(
        self, conversation: ConversationId, key: KeyId, items: Sequence[dict[str, Any]], response: RequestId, epoch: int
    ) -> None:
        """Adds a response's items: once, however often it is called; not at all if the conversation is deleted.

        Raises: Lost.
        """
        if await self._converse(conversation, key, items, response=response, epoch=epoch) == -1:
            raise Lost

    async def remove(self, conversation: ConversationId, key: KeyId, item: bytes) -> None:
        names = *self._keys.conversation(conversation), *self._keys.kept_account()
        parts = Parted(item, {}) if self._strings is None else await asyncio.to_thread(parted, item)
        await self._wire.execute([("EVAL", UNSAY, 4, *names, conversation, key, parts.raw, parts.size)])
        await self._forget(conversation, parts.strings)

    async def _converse(
        self,
        conversation: ConversationId,
        key: KeyId,
        items: Sequence[dict[str, Any]],
        *,
        record: bytes = b"",
        response: RequestId | None = None,
        epoch: int = 0,
        quota: Quota | None = None,
    ) -> Any:
        own, items_key = self._keys.conversation(conversation)
        names = own, items_key, self._keys.kept(response) if response else own, *self._keys.kept_account()
        bounds: tuple[Any, ...] = ("", "", "") if response else (MOST, *self._bounds(quota))
        parts = await self._parted(items)
        strings = {name: string for one in parts for name, string in one.strings.items()}
        if strings and self._strings is not None:
            await self._strings.put(conversation, strings)
        values = (
            conversation,
            key,
            self._keep_ms,
            record,
            response or "",
            epoch,
            *bounds,
            sum(one.size for one in parts),
        )
        (reply,) = await self._wire.execute([("EVAL", CONVERSE, 5, *names, *values, *(one.raw for one in parts))])
        if reply != -1 and (reply == 0 or reply[0]):
            await self._forget(conversation, strings)
        return reply

    async def _parted(self, items: Sequence[dict[str, Any]]) -> list[Parted]:
        raw_items = [orjson.dumps(item) for item in items]
        if self._strings is None or max(map(len, raw_items), default=0) <= LONG:
            return [Parted(raw, {}) for raw in raw_items]
        return [await asyncio.to_thread(parted, raw) for raw in raw_items]

    async def _forget(self, conversation: ConversationId, strings: Collection[str]) -> None:
        """Deletes strings of items that aren't kept. If the storage is away, they go with the conversation."""
        if strings and self._strings is not None:
            with suppress(StorageDown):
                await self._strings.delete(conversation, strings)

    def _bounds(self, quota: Quota | None) -> tuple[int, int]:
        """The most bytes of an API key, and of all."""
        return (self._most[0] if quota is None else quota.most), self._most[1]

    def _check(self, reply: Any, conversation: ConversationId | None = None) -> None:
        if reply == 0 and conversation is not None:
            raise _gone(conversation)
        full, wait_ms = reply
        if full == b"locked":
            raise ConversationLocked(param="conversation")
        if full == b"items":
            raise RequestError(f"A conversation has at most {MOST} items.", param="items")
        check_room(full, wait_ms)


def _record(created_at: int, metadata: dict[str, str]) -> bytes:
    return orjson.dumps({"created": created_at, "metadata": metadata})


def _gone(conversation: str) -> ConversationGone:
    return ConversationGone(
        f"No conversation with the id '{conversation[:100]}' is kept; they are deleted after a time."
    )
