"""Kept answers in Redis: `kept:<id>` has the request and the replica that owns it, `log:<id>` the answer so far."""

import asyncio
import hashlib
import math
from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from app.api.resumable.long_strings import LONG, LongStrings, parted
from app.bounded.turns import Turns
from app.endpoints import RESPONSE
from app.errors import (
    BudgetUsed,
    Cancelled,
    ConversationLocked,
    KeptFull,
    ModelNotFound,
    NoWorker,
    RateLimited,
    RequestNotFound,
    Saturated,
    StorageDown,
    StoreDown,
)
from app.ids import ApiId, ConversationId, KeyId, RequestId
from app.keys import Keys
from app.messages.events import Event, Failed, decode_events
from app.messages.kept import KeptRequest, decode_kept
from app.messages.wire import encode
from app.store import Wire, clock
from app.store.handling import Handling
from app.store.scripts import ADOPT, APPEND, CANCEL, DISOWN, FORGET, FORGET_OWNER, OWN
from app.tenants.stored_bytes import Quota

_PAGE, _LONG_PAGE = 16, 512  # batches read at once: for a stream, and for a whole answer
_LARGE = 2**16  # bytes that are decoded in a thread
_LAST_READ_MS = 5000  # how long a deleted answer's log stays for its readers
_REFUSED_MS = 60_000  # how long a refused answer is kept
REFUSALS = {error.code for error in (BudgetUsed, KeptFull, ModelNotFound, NoWorker, RateLimited, Saturated, StoreDown)}
MOST_BYTES = 2**53  # which no Redis has
_MOST_READERS = 2**20  # of one client
_FULL = "The space for kept answers was used up while this one was made, so that it could not be kept."


class Found(Struct, frozen=True):
    """A kept request, and its present epoch: +1 for each new owner."""

    kept: KeptRequest
    epoch: int


class Standing(Struct, frozen=True):
    """An answer's standing: who makes it, or that nobody does any more."""

    epoch: int
    ended: bool


class Unkept(Exception):
    """Lack of room for more of the answer: nothing of it is kept any more, and what comes is not written."""


class Lost(Cancelled):
    """Another API replica owns the answer now, or it was cancelled."""


class Over(Lost):
    """The answer was cancelled."""


_WHY_NOT = {-1: Lost, -3: Unkept, -4: Over}  # by what `append.lua` returns


class ResumableStore:
    """All methods raise StoreDown; those that take or give a request also StorageDown, if it has long strings."""

    def __init__(
        self,
        wire: Wire,
        keys: Keys,
        api: ApiId,
        keep_s: float,
        bytes_per_key: int = MOST_BYTES,
        bytes_in_all: int = MOST_BYTES,
        *,
        tells: bool = False,
        strings: LongStrings | None = None,
    ) -> None:
        """`keep_s`: how long an answer is kept after its end. Above either number of bytes, nothing more is kept.

        `strings`: of requests, that are too long for Redis; None: all are there.
        `tells`: whether there is a webhook, which is told of the ends of background responses.
        """
        self._wire, self._keys, self.api, self._tells, self._strings = wire, keys, api, tells, strings
        self._keep_ms = round(keep_s * 1000)
        self._most = bytes_per_key, bytes_in_all
        # Of all streams that are read again, one long piece in a turn of the event loop.
        self.backlogs = Turns(1, _MOST_READERS, "streams that are read again")

    @property
    def connected_before(self) -> bool:
        return self._wire.connected_before

    def handling(self) -> Handling:
        """The `Handling` for adopting."""
        return Handling(self._wire, self._keys)

    async def put(
        self,
        kept_request: KeptRequest,
        epoch: int = 0,
        join: str = "",
        instead_of: str = "",
        *,
        read: int | None = None,
        bounded: bool = True,
        quota: Quota | None = None,
    ) -> RequestId:
        """Keeps a request, owned by this replica. Returns the id of the first request with the same `join` key.

        It locks its conversation until the answer's end. `read`: how many items of that the request has read.
        `instead_of`: a former request with that key, to be replaced. `quota`: None: the usual one of an API key.
        Raises: ConversationLocked, unless `read` is None; KeptFull, unless not `bounded`.
        """
        keys = self._keys
        join_key = keys.joined(hashlib.sha256(f"{kept_request.key}\0{join}".encode()).hexdigest())
        own = keys.kept(kept_request.id)
        conversation = ConversationId(kept_request.response.conversation)
        conversation_keys = keys.conversation(conversation) if conversation else (own, own)
        first_of = join_key if join else own
        names = own, keys.kept_of(self.api), keys.answer_owners(), first_of, *conversation_keys, *keys.kept_account()
        in_redis, size_elsewhere = await self._parted(kept_request)
        record = kept_request.id, self.api, encode(in_redis), self._life_ms(kept_request), epoch
        joining = kept_request.id if join else "", instead_of, kept_request.key
        per_key, in_all = self._most
        most = (per_key if quota is None else quota.most, in_all) if bounded else ("", "")
        more = encode(kept_request.chat) if kept_request.chat else "", "" if read is None else read, size_elsewhere
        values = *record, *joining, *most, *more
        ((full, first, wait_ms),) = await self._wire.execute([("EVAL", OWN, len(names), *names, *values)])
        if size_elsewhere and (full or (join and first.decode() != kept_request.id)):
            await self._forget_strings(kept_request.id)
        if full == b"locked":
            raise ConversationLocked(param="conversation")
        if full:
            raise _kept_full(full == b"key", quota, wait_ms)
        return RequestId(first.decode()) if join else kept_request.id

    async def find(self, request: RequestId, key: KeyId, *, short: bool = False) -> Found:
        """A kept request of that API key's. `short`: long strings are a hyphen. Raises: RequestNotFound, MediaLost."""
        ((record, epoch),) = await self._wire.execute([("HMGET", self._keys.kept(request), "record", "epoch")])
        if record is None or (kept_request := decode_kept(record)).key != key:
            raise RequestNotFound(f"No answer with the id '{request}' is kept; they are deleted after a time.")
        kept_request = shortened(kept_request) if short else await whole(kept_request, self._strings)
        return Found(kept_request, int(epoch))

    async def kept(self, request: RequestId) -> KeptRequest:
        """The kept request, whoever asked for it; long strings are a hyphen. Raises: RequestNotFound."""
        (record,) = await self._wire.execute([("HGET", self._keys.kept(request), "record")])
        if record is None:
            raise RequestNotFound
        return shortened(decode_kept(record))

    async def _parted(self, kept_request: KeptRequest) -> tuple[KeptRequest, int]:
        """The request for Redis, and how many of its bytes are elsewhere. Raises: StorageDown."""
        raws = kept_request.body, kept_request.response.history
        if self._strings is None or sum(map(len, raws)) <= LONG:
            return kept_request, 0
        body, history = [await asyncio.to_thread(parted, raw) for raw in raws]
        strings = {**body.strings, **history.strings}
        if not strings:
            return kept_request, 0
        await self._strings.put(kept_request.id, strings)
        response = replace(kept_request.response, history=history.raw)
        return replace(kept_request, body=body.raw, response=response), sum(map(len, strings.values()))

    async def _forget_strings(self, request: RequestId) -> None:
        """Deletes its long strings; if the storage is away, a later sweep does."""
        if self._strings is not None:
            with suppress(StorageDown):
                await self._strings.delete(request)

    def _life_ms(self, kept_request: KeptRequest) -> int:
        """The time that it is kept before its end."""
        return round((kept_request.deadline - kept_request.created) * 1000) + self._keep_ms

    def _due(self, request: RequestId) -> int | str:
        """Returns when the webhook is to look at what ends now, ms; "": never."""
        return round(clock.now() * 1000) if self._tells and request.startswith(RESPONSE.prefix) else ""

    async def note(
        self,
        kept_request: KeptRequest,
        epoch: int,
        batches: Sequence[bytes],
        *,
        ended: bool,
        refused: bool = False,
        whole: bool = False,
    ) -> None:
        """Writes `batches`, the whole log so far; those that the log has are skipped. Raises: Lost, Unkept.

        `refused`: it failed without output, and is kept for a short time only. `whole`: it ended well.
        """
        keys, first = self._keys, len(batches)  # earlier batches were written, unless Redis has lost them
        while True:
            own = keys.kept(kept_request.id), keys.log(kept_request.id), keys.kept_of(self.api)
            names = *own, keys.chats_of(kept_request.key), keys.untold(), *keys.kept_account()
            life_ms: int | str = ""
            if ended:
                life_ms = min(self._keep_ms, _REFUSED_MS) if refused else self._keep_ms
            elif first <= 1:
                life_ms = self._life_ms(kept_request)
            score = round(kept_request.created * 1000) if kept_request.chat and whole else ""
            full = encode([Failed(kept_request.id, 0, KeptFull.code, _FULL)])
            due = self._due(kept_request.id) if kept_request.background else ""
            end = "ended" if ended else ""
            values = kept_request.id, epoch, first, life_ms, end, score, *self._most, full, _REFUSED_MS, due
            (last,) = await self._wire.execute([("EVAL", APPEND, 7, *names, *values, *batches[first - 1 :])])
            if last in _WHY_NOT:
                raise _WHY_NOT[last]
            if last == -2:
                await self.put(kept_request, epoch, bounded=False)
                first = 1
            elif last >= len(batches):
                return
            else:
                first = last + 1

    async def page(self, request: RequestId, after: int = 0, most: int = _PAGE) -> list[bytes]:
        """The batches after number `after`, in order; at most so many of them."""
        command = ("XRANGE", self._keys.log(request), f"{after + 1}-0", "+", "COUNT", most)
        (page,) = await self._wire.execute([command])
        return [fields[1] for _id, fields in page]

    async def written(self, request: RequestId) -> list[list[Event]]:
        """All batches of the log so far."""
        batches: list[list[Event]] = []
        while page := await self.page(request, len(batches), _LONG_PAGE):
            batches += await decoded(page)
        return batches

    async def cancel(self, request: RequestId, last: list[Event]) -> bool:
        """Ends an answer's log with `last`; its owner's later events are refused. False: it had ended before."""
        names = self._keys.kept(request), self._keys.log(request), self._keys.untold(), *self._keys.kept_account()
        values = request, encode(last), self._keep_ms, self._due(request)
        (was_cancelled,) = await self._wire.execute([("EVAL", CANCEL, 5, *names, *values)])
        return bool(was_cancelled)

    async def delete(self, request: RequestId) -> None:
        """Removes an ended answer. Its log stays for some seconds, for readers that have not reached its end.

        Its epoch stays, too: without it, an owner that doesn't know yet would write the answer again.
        """
        names = self._keys.kept(request), self._keys.log(request), *self._keys.kept_account()
        if self._strings is not None:
            (size_elsewhere,) = await self._wire.execute([("HGET", names[0], "elsewhere")])
            if size_elsewhere:
                await self._strings.delete(request)
        await self._wire.execute([("EVAL", FORGET, 4, *names, request, self._keep_ms, _LAST_READ_MS)])

    async def disown(self, requests: Sequence[RequestId]) -> None:
        """Disowns requests that have ended, or that another replica owns.

        Nobody has to adopt them when this replica dies.
        """
        if requests:
            names = self._keys.kept_of(self.api), *map(self._keys.kept, requests)
            await self._wire.execute([("EVAL", DISOWN, len(names), *names, self.api, *requests)])

    async def standing(self, requests: Sequence[RequestId]) -> list[Standing | None]:
        """The standing of each request; None: Redis doesn't know it."""
        replies = await self._wire.execute(
            [("HMGET", self._keys.kept(request), "epoch", "end") for request in requests]
        )
        return [None if epoch is None else Standing(int(epoch), end is not None) for epoch, end in replies]

    async def dead_owners(self) -> list[ApiId]:
        (members,) = await self._wire.execute([("SMEMBERS", self._keys.answer_owners())])
        apis = [ApiId(member.decode()) for member in members]
        alive = await self._wire.execute([("EXISTS", self._keys.api(api)) for api in apis])
        return [api for api, lives in zip(apis, alive, strict=True) if not lives and api != self.api]

    async def owned_by(self, api: ApiId) -> set[RequestId]:
        (members,) = await self._wire.execute([("SMEMBERS", self._keys.kept_of(api))])
        return {RequestId(member.decode()) for member in members}

    async def adopt(self, request: RequestId, owner: ApiId) -> Found | None:
        """Makes this replica the owner, in a new epoch. None: it has ended, or another replica owns it by now."""
        keys = self._keys
        names = keys.kept(request), keys.kept_of(owner), keys.kept_of(self.api), keys.answer_owners()
        (reply,) = await self._wire.execute([("EVAL", ADOPT, 4, *names, request, owner, self.api)])
        return None if reply is None else Found(await whole(decode_kept(reply[0]), self._strings), int(reply[1]))

    async def forget_owner(self, api: ApiId) -> None:
        """All its answers are adopted; unless it lives, and has some anew."""
        names = self._keys.answer_owners(), self._keys.kept_of(api)
        await self._wire.execute([("EVAL", FORGET_OWNER, 2, *names, api)])


async def whole(kept_request: KeptRequest, strings: LongStrings | None) -> KeptRequest:
    """The request as it came. Raises: StorageDown, MediaLost."""
    body, history = kept_request.body, kept_request.response.history
    if strings is None or (strings.is_whole(body) and strings.is_whole(history)):
        return kept_request
    body, history = [await strings.whole(kept_request.id, raw) for raw in (body, history)]
    return replace(kept_request, body=body, response=replace(kept_request.response, history=history))


def shortened(kept_request: KeptRequest) -> KeptRequest:
    """The request with a hyphen for each long string."""
    body, history = map(LongStrings.shortened, (kept_request.body, kept_request.response.history))
    return replace(kept_request, body=body, response=replace(kept_request.response, history=history))


def check_room(full: bytes, wait_ms: int) -> None:
    """`full`: the limit reached, as scripts tell it. Raises: KeptFull."""
    if full:
        raise KeptFull(
            "Kept answers and conversations have used up their space. Delete some, or try again later.",
            retry_after_s=max(1, math.ceil(wait_ms / 1000)),
        )


async def decoded(batches: Sequence[bytes]) -> list[list[Event]]:
    def decode() -> list[list[Event]]:
        return [decode_events(batch) for batch in batches]

    return await asyncio.to_thread(decode) if sum(map(len, batches)) > _LARGE else decode()


def _kept_full(of_one: bool, quota: Quota | None, wait_ms: int) -> KeptFull:
    """`of_one`: the space of its key or tenant is used up, else that of all clients."""
    own = "this tenant" if quota is not None and quota.of_tenant else "this API key"
    return KeptFull(
        f"The kept answers of {own if of_one else 'all clients'} have used up their space. "
        "Delete some, try again later, or ask for an answer that is not kept.",
        retry_after_s=max(1, math.ceil(wait_ms / 1000)),
    )
