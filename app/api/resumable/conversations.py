"""Conversations in Redis: `conversation:<id>` has owner and metadata, `conversation-items:<id>` the items."""

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import orjson
from msgspec import Struct

from app.api.resumable.store import Lost, check_room
from app.errors import ConversationGone, ConversationLocked, RequestError, Saturated
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
    """All methods raise StoreDown; with an id, also ConversationGone, even if the conversation is another client's."""

    def __init__(self, wire: Wire, keys: Keys, keep_s: float, bytes_per_key: int, bytes_in_all: int) -> None:
        """`keep_s`: how long a conversation is kept after its last change."""
        self._wire, self._keys = wire, keys
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
            yield part
            at += way * len(part)

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
        await self._wire.execute([("EVAL", UNSAY, 4, *names, conversation, key, item)])

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
        values = conversation, key, self._keep_ms, record, response or "", epoch, *bounds
        (reply,) = await self._wire.execute([("EVAL", CONVERSE, 5, *names, *values, *map(orjson.dumps, items))])
        return reply

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
