"""The batches, in Redis: how each stands, and which worker has which part of it. All methods raise StoreDown."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct

from app.batch.file_store import page
from app.batch.records import LIVE, Batch, BatchOrder, Result, Status, decode_result, packed, read_batch
from app.batch.window import MOST_S
from app.errors import BatchNotFound
from app.ids import ApiId, BatchId, KeyId
from app.keys import Keys
from app.messages import encode
from app.store import (
    ADD_RESULT,
    CLAIM_PART,
    COMPLETE,
    CREATE,
    HAND_OUT_PARTS,
    LEAD,
    LOCK,
    RETURN_PART,
    SET_PARTS,
    SET_STATUS,
    UNLOCK,
    Command,
    Wire,
    clock,
)
from app.telemetry import logger

log = logger(__name__)

MOST_BREAKS = 5  # of what is due of a batch, or of a part of it, in an unforeseen way; then it is given up
_LEADER_MS = 3000
_LOST_MS = 10_000  # a message that no worker has taken for so long is sent again: sent twice, it is taken once
_SILENT_MS = 30_000  # a worker that has not said for so long that it has a part, or the lock, has lost it
Fields = Mapping[str, str | int | bytes]  # of Batch

_CHUNK = 5000  # members of one command
_SLACK_S = 86_400  # by which a batch may be longer on its way than its window


class PartClaim(Struct, frozen=True):
    """One sending of a part; a later one makes it worthless."""

    batch: BatchId
    part: int
    number: int


class BatchLoad(Struct, frozen=True):
    """The work that is left of a batch."""

    todo: int  # parts that nobody has
    taken: int
    holder: ApiId | None  # the worker that validates or finishes it, if it lives
    answered: int = 0  # lines of the parts that are taken


class BatchStore:
    def __init__(self, wire: Wire, keys: Keys, keep_s: float) -> None:
        """`keep_s`: how long batches are known after their end."""
        self._wire, self._keys, self._keep_ms = wire, keys, round(keep_s * 1000)

    async def create(self, order: BatchOrder) -> Batch:
        keys, now = self._keys, clock.now()  # with its fractions: in their order, also within a second
        names = keys.batch(order.id), keys.batches_of(order.key), keys.batches()
        oldest = now - MOST_S - self._keep_ms / 1000 - _SLACK_S
        await self._wire.execute([("EVAL", CREATE, 3, *names, order.id, packed(order), now, order.expires, oldest)])
        return Batch(order)

    async def find(self, batch: BatchId, key: KeyId | None) -> Batch:
        """Of that API key; None: of any. Raises: BatchNotFound."""
        (found,) = await self._read([batch])
        if found is None or (key is not None and found.order.key != key):
            raise BatchNotFound(f"No batch found with id '{batch}'.")
        return found

    async def owned(self, key: KeyId, after: str, limit: int) -> tuple[list[Batch], bool]:
        """Up to `limit` of them behind `after`, the newest first, and whether there are more."""
        ids, more = await page(self._wire, self._keys.batches_of(key), after, limit, newest_first=True)
        found = await self._read([BatchId(id_) for id_ in ids])
        gone = [id_ for id_, batch in zip(ids, found, strict=True) if batch is None]
        if gone:
            await self._wire.execute([("ZREM", self._keys.batches_of(key), *gone)])
        return [batch for batch in found if batch is not None], more

    async def live(self) -> list[Batch]:
        """Those that have not ended, and those that are not cleaned up; the most urgent first."""
        (raw,) = await self._wire.execute([("ZRANGE", self._keys.batches(), 0, -1)])
        ids = [BatchId(id_.decode()) for id_ in raw]
        found: list[Batch] = []
        gone: list[BatchId] = []
        for id_, fields in zip(ids, await self._hashes(ids), strict=True):
            try:
                if (batch := _batch(fields)) is None:
                    gone.append(id_)
                else:
                    found.append(batch)
            except msgspec.MsgspecError as exc:  # another version's; the others go on
                log.error("batch_not_understood", batch=id_, error=str(exc))
        if gone:
            await self._wire.execute([("ZREM", self._keys.batches(), *gone)])
        return found

    async def _read(self, ids: Sequence[BatchId]) -> list[Batch | None]:
        return [_batch(fields) for fields in await self._hashes(ids)]

    async def _hashes(self, ids: Sequence[BatchId]) -> list[dict[bytes, bytes]]:
        replies = await self._wire.execute([("HGETALL", self._keys.batch(id_)) for id_ in ids])
        return [dict(zip(flat[::2], flat[1::2], strict=True)) for flat in replies]

    async def set_status(self, batch: BatchId, expected: Iterable[Status], fields: Fields, holder: str = "") -> bool:
        """Sets fields, `status` first if it is one, when its status is an expected one and `holder` has it.

        False: it isn't, or hasn't.
        """
        ended = fields.get("status") not in (None, *LIVE)
        flat = [x for pair in fields.items() for x in pair]
        may = f",{','.join(expected)},"
        life_ms = self._keep_ms if ended else ""
        (done,) = await self._wire.execute(
            [("EVAL", SET_STATUS, 1, self._keys.batch(batch), may, holder, life_ms, *flat)]
        )
        return bool(done)

    async def cancel(self, batch: BatchId) -> None:
        """Nothing of it is begun any more. One that is being finished, or has ended, stays as it is."""
        now = int(clock.now())
        fields: Fields = {"status": "cancelling", "cancelling_at": now, "ending": "cancelled"}
        await self.set_status(batch, ("validating", "in_progress"), fields)

    async def pause(self, batch: BatchId, *, paused: bool) -> None:
        """Its running lines are given up, and computed when it goes on."""
        await self.set_status(batch, ("validating", "in_progress"), {"paused": int(paused)})

    async def lock(self, batch: BatchId, status: Status, worker: ApiId) -> bool:
        """Whether this worker is the one to do what is due at that status; asked again, whether it still is."""
        values = status, worker, self._keys.api(ApiId("")), _SILENT_MS
        (mine,) = await self._wire.execute([("EVAL", LOCK, 1, self._keys.batch(batch), *values)])
        return bool(mine)

    async def unlock(self, batch: BatchId, worker: ApiId) -> None:
        """If it has the lock: another one may do it."""
        await self._wire.execute([("EVAL", UNLOCK, 1, self._keys.batch(batch), worker)])

    async def leave(self, batch: BatchId) -> None:
        """It has ended, and nothing is left to be done."""
        await self._wire.execute([("ZREM", self._keys.batches(), batch)])

    async def set_parts(self, batch: BatchId, parts: int, holder: str = "") -> bool:
        """There are so many parts to do. It is still validating: nobody takes them yet.

        False: it isn't, or `holder` hasn't the lock any more.
        """
        names = self._keys.batch(batch), self._keys.todo(batch)
        (done,) = await self._wire.execute([("EVAL", SET_PARTS, 2, *names, holder, parts)])
        return bool(done)

    async def complete(self, batch: BatchId, fields: Fields) -> bool:
        """Sets fields when it is in progress and has no part left. What `loads` says may be older."""
        keys, flat = self._keys, [x for pair in fields.items() for x in pair]
        names = keys.batch(batch), keys.todo(batch), keys.taken(batch)
        (done,) = await self._wire.execute([("EVAL", COMPLETE, 3, *names, *flat)])
        return bool(done)

    async def lead(self, worker: ApiId, parts: int) -> bool:
        """Whether this worker, which takes so many parts, looks after all batches for the next seconds."""
        takes = "HSET", self._keys.batch_workers(), worker, parts
        lead = "EVAL", LEAD, 1, self._keys.batch_leader(), worker, _LEADER_MS
        return bool((await self._wire.execute([takes, lead]))[1])

    async def capacity(self) -> int:
        """How many parts the batch workers that live can have."""
        known = self._keys.batch_workers()
        (flat,) = await self._wire.execute([("HGETALL", known)])
        takes = {ApiId(worker.decode()): int(parts) for worker, parts in zip(flat[::2], flat[1::2], strict=True)}
        alive = await self._wire.execute([("EXISTS", self._keys.api(worker)) for worker in takes])
        gone = [worker for worker, lives in zip(takes, alive, strict=True) if not lives]
        if gone:
            await self._wire.execute([("HDEL", known, *gone)])
        return sum(parts for worker, parts in takes.items() if worker not in gone)

    async def loads(self, batches: Sequence[BatchId]) -> list[BatchLoad]:
        keys = self._keys
        commands: list[Command] = []
        for batch in batches:
            commands += [
                ("ZCARD", keys.todo(batch)),
                ("HKEYS", keys.taken(batch)),
                ("HMGET", keys.batch(batch), "holder", "holder_at"),
            ]
        *replies, (seconds, micros) = await self._wire.execute([*commands, ("TIME",)])
        oldest = int(seconds) * 1000 + int(micros) // 1000 - _SILENT_MS
        holders = [
            ApiId(holder.decode()) if holder and int(at or 0) >= oldest else None for holder, at in replies[2::3]
        ]
        alive = await self._wire.execute([("EXISTS", keys.api(holder or ApiId(""))) for holder in holders])
        parts = [(batch, int(part)) for batch, taken in zip(batches, replies[1::3], strict=True) for part in taken]
        done = await self._wire.execute([("HLEN", keys.done(batch, part)) for batch, part in parts])
        answered = Counter[BatchId]()
        for (batch, _), lines in zip(parts, done, strict=True):
            answered[batch] += lines
        return [
            BatchLoad(todo, len(taken), holder if lives else None, answered[batch])
            for batch, todo, taken, holder, lives in zip(
                batches, replies[::3], replies[1::3], holders, alive, strict=True
            )
        ]

    async def hand_out(self, wanted: dict[BatchId, int]) -> list[PartClaim]:
        """So many parts of each that are to be sent now, and those that have to be sent again."""
        keys = self._keys
        tail = keys.api(ApiId("")), _LOST_MS, _SILENT_MS
        commands: list[Command] = [
            ("EVAL", HAND_OUT_PARTS, 3, keys.batch(batch), keys.todo(batch), keys.taken(batch), count, *tail)
            for batch, count in wanted.items()
        ]
        return [
            PartClaim(batch, int(part), int(number))
            for batch, flat in zip(wanted, await self._wire.execute(commands), strict=True)
            for part, number in zip(flat[::2], flat[1::2], strict=True)
        ]

    async def claim_part(self, ticket: PartClaim, worker: ApiId) -> bool:
        """Whether the part is this worker's from now on, for a while: it has to say so again."""
        keys = self._keys
        values = ticket.part, ticket.number, worker
        names = keys.batch(ticket.batch), keys.taken(ticket.batch)
        (mine,) = await self._wire.execute([("EVAL", CLAIM_PART, 2, *names, *values)])
        return bool(mine)

    async def add_result(self, ticket: PartClaim, worker: ApiId, result: Result) -> bool:
        """Writes a line's result. False: the part is another worker's by now."""
        keys, batch = self._keys, ticket.batch
        names = keys.batch(batch), keys.taken(batch), keys.done(batch, ticket.part), keys.batch_totals()
        outcome = "completed" if result.problem is None else "failed"
        values = ticket.part, ticket.number, worker, result.number, encode(result), outcome
        tokens = result.prompt, result.cached, result.completion
        (mine,) = await self._wire.execute([("EVAL", ADD_RESULT, 4, *names, *values, *tokens)])
        return bool(mine)

    async def done(self, batch: BatchId, part: int) -> list[Result]:
        """A part's results that are not in the storage yet."""
        (found,) = await self._wire.execute([("HVALS", self._keys.done(batch, part))])
        return [decode_result(raw) for raw in found]

    async def return_part(self, ticket: PartClaim, worker: ApiId, *, done: bool, broke: bool = False) -> None:
        """It is in the storage; or it is to be taken by another worker, unless it broke for the last time."""
        keys, batch = self._keys, ticket.batch
        names = keys.taken(batch), keys.todo(batch), keys.done(batch, ticket.part), keys.batch(batch)
        how = "done" if done else "broke" if broke else "back"
        values = ticket.part, ticket.number, worker, how, MOST_BREAKS
        await self._wire.execute([("EVAL", RETURN_PART, 4, *names, *values)])

    async def forget_parts(self, batch: BatchId, parts: int) -> None:
        """All that came of it is in its output and error file."""
        keys = self._keys
        names = [keys.todo(batch), keys.taken(batch), *(keys.done(batch, part) for part in range(parts))]
        await self._wire.execute([("UNLINK", *names[i : i + _CHUNK]) for i in range(0, len(names), _CHUNK)])

    async def totals(self) -> dict[str, int]:
        """Since this deployment began: lines `completed` and `failed`; tokens `prompt`, `cached`, `completion`."""
        (flat,) = await self._wire.execute([("HGETALL", self._keys.batch_totals())])
        return {name.decode(): int(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}


def _batch(fields: dict[bytes, bytes]) -> Batch | None:
    """Raises: msgspec.MsgspecError."""
    return read_batch(fields) if b"order" in fields else None
