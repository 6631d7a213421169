"""Batches in Redis: the status of each, and which worker has which of its parts. All methods raise StoreDown."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct

from app.batch.handling_names import of_batch, of_part
from app.batch.records import LIVE, Batch, BatchOrder, Result, Status, decode_result, packed, read_batch
from app.batch.window import MOST_S
from app.errors import BatchNotFound, TooManyBatches
from app.ids import ApiId, BatchId, KeyId
from app.keys import Keys
from app.messages.wire import encode
from app.store import Command, Wire, clock
from app.store.page import FEW, page
from app.store.scripts import (
    ADD_RESULT,
    CLAIM_PART,
    COMPLETE,
    COUNT_LINES,
    CREATE,
    HAND_OUT_PARTS,
    LEAD,
    LOCK,
    RETURN_PART,
    SET_PARTS,
    SET_STATUS,
    UNLOCK,
)
from app.telemetry import logger

log = logger(__name__)

MOST_BREAKS = 5  # internal errors with a batch's next step, or with one part, after which it is given up
MOST_OF_KEY = 500  # unfinished batches of one key
MOST_IN_ALL = 10_000  # and of all clients: a record has up to 12 kB, mostly the client's metadata
_LEADER_MS = 3000  # how long the leader leads without renewal
_LOST_MS = 10_000  # a part's message that no worker takes for so long is sent again; only the last ticket counts
_SILENT_MS = 30_000  # a worker that doesn't renew its claim of a part, or its lock, for so long loses it
Fields = Mapping[str, str | int | bytes]  # of Batch

_TOTALS = ("completed", "failed", "prompt", "cached", "completion")
_KEPT_OF_KEY = 1000  # of one key, with those that have ended
_FULL_S = 60  # when to try again, if there are so many: nobody knows when one ends
_READ = 200  # records at once: more would hold the event loop
_CHUNK = 5000  # members of one command
_SLACK_S = 86_400  # by which a batch may end later than its window


class PartClaim(Struct, frozen=True):
    """The ticket for one sending of a part; a later ticket makes it void."""

    batch: BatchId
    part: int
    number: int


class BatchLoad(Struct, frozen=True):
    """A batch's unfinished parts."""

    todo: int  # parts that nobody has
    taken: int
    holder: ApiId | None  # the live worker that has its lock: it validates or finishes the batch
    answered: int = 0  # lines of the parts that are taken


class BatchStore:
    def __init__(
        self, wire: Wire, keys: Keys, keep_s: float, most_of_key: int = MOST_OF_KEY, most: int = MOST_IN_ALL
    ) -> None:
        """`keep_s`: seconds that a batch's record is kept after its end. `most`: unfinished ones of all clients."""
        self._wire, self._keys, self._keep_ms = wire, keys, round(keep_s * 1000)
        self._most_of_key, self._most = most_of_key, most
        self._odd: set[bytes] = set()  # fields that are no numbers, and logged

    async def create(self, order: BatchOrder) -> Batch:
        """Raises: TooManyBatches."""
        keys, now = self._keys, clock.now()  # with fractions, to keep the order within a second
        names = keys.batch(order.id), keys.batches_of(order.key), keys.batches()
        oldest = now - MOST_S - self._keep_ms / 1000 - _SLACK_S
        values = order.id, packed(order), now, order.expires, oldest, keys.batch(BatchId(""))
        bounds = self._most_of_key, self._most, max(_KEPT_OF_KEY, 2 * self._most_of_key)
        (full,) = await self._wire.execute([("EVAL", CREATE, 3, *names, *values, *bounds)])
        if full is not None:
            whose = f"{self._most_of_key} of your" if full == b"key" else f"{self._most}"
            raise TooManyBatches(
                f"There are {whose} batches that have not ended. Try again when one has.", retry_after_s=_FULL_S
            )
        return Batch(order)

    async def find(self, batch: BatchId, key: KeyId | None) -> Batch:
        """`key`: its API key; None: any. Raises: BatchNotFound."""
        (record,) = await self._read([batch])
        if record is None or (key is not None and record.order.key != key):
            raise BatchNotFound(f"No batch found with id '{batch}'.")
        return record

    async def owned(
        self,
        key: KeyId,
        after: str,
        limit: int,
        *,
        newest_first: bool = True,
        only: Callable[[BatchId], bool] | None = None,
        param: str = "after",
    ) -> tuple[list[Batch], bool]:
        """Up to `limit` of the key's batches after the id `after`, and whether there are more. `only`: of these ids.

        `param`: of the request, which has `after`. Raises: RequestError.
        """
        ids: list[BatchId] = []
        names, more, size = [after] if after else [], True, max(limit, FEW)
        while more and len(ids) <= limit:
            names, more = await page(
                self._wire, self._keys.batches_of(key), names, size, newest_first=newest_first, param=param
            )
            ids += [id_ for id_ in map(BatchId, names) if only is None or only(id_)]
        ids, more = ids[:limit], more or len(ids) > limit
        return await self._understood(ids, self._keys.batches_of(key)), more

    async def all_of(self, key: KeyId) -> list[tuple[BatchId, Batch | None]]:
        """All of the key's batches; None: of another version, or expired."""
        (raw,) = await self._wire.execute([("ZRANGE", self._keys.batches_of(key), 0, -1)])
        ids = [BatchId(id_.decode()) for id_ in raw]
        pairs: list[tuple[BatchId, Batch | None]] = []
        for id_, fields in zip(ids, await self._hashes(ids), strict=True):
            try:
                pairs.append((id_, _batch(fields)))
            except msgspec.MsgspecError:
                pairs.append((id_, None))
        return pairs

    async def has_leader(self) -> bool:
        """Whether some batch worker is there to carry on with batches."""
        (lives,) = await self._wire.execute([("EXISTS", self._keys.batch_leader())])
        return bool(lives)

    async def remove(self, batch: BatchId, key: KeyId, parts: int) -> None:
        """Removes its record, of this API key, and its parts. A batch worker that has one is refused from then on."""
        await self.forget_parts(batch, parts)
        keys = self._keys
        lists: list[Command] = [("ZREM", name, batch) for name in (keys.batches(), keys.batches_of(key))]
        await self._wire.execute([("UNLINK", keys.batch(batch)), *lists])

    async def live_ids(self) -> list[BatchId]:
        """The batches that have not ended or are not cleaned up, the most urgent first."""
        (raw,) = await self._wire.execute([("ZRANGE", self._keys.batches(), 0, -1)])
        return [BatchId(id_.decode()) for id_ in raw]

    async def live(self, ids: Sequence[BatchId] | None = None) -> list[Batch]:
        """Batches of `ids` that are not cleaned up, in order. None: all, the most urgent first."""
        return await self._understood(await self.live_ids() if ids is None else ids, self._keys.batches())

    async def _understood(self, ids: Sequence[BatchId], index: str) -> list[Batch]:
        """Reads those of `ids` that this version understands. What is gone leaves `index`."""
        batches: list[Batch] = []
        lost_ids: list[BatchId] = []
        for id_, fields in zip(ids, await self._hashes(ids), strict=True):
            try:
                if (batch := _batch(fields)) is None:
                    lost_ids.append(id_)
                else:
                    batches.append(batch)
            except msgspec.MsgspecError as exc:  # of another version; the other batches go on
                log.error("batch_not_understood", batch=id_, error=str(exc))
        if lost_ids:
            await self._wire.execute([("ZREM", index, *lost_ids)])
        return batches

    async def _read(self, ids: Sequence[BatchId]) -> list[Batch | None]:
        return [_batch(fields) for fields in await self._hashes(ids)]

    async def _hashes(self, ids: Sequence[BatchId]) -> list[dict[bytes, bytes]]:
        hashes: list[dict[bytes, bytes]] = []
        for i in range(0, len(ids), _READ):
            replies = await self._wire.execute([("HGETALL", self._keys.batch(id_)) for id_ in ids[i : i + _READ]])
            hashes += [dict(zip(flat[::2], flat[1::2], strict=True)) for flat in replies]
        return hashes

    async def set_status(self, batch: BatchId, earlier: Iterable[Status], fields: Fields, holder: str = "") -> bool:
        """Sets fields, `status` first if it changes, if the batch has an expected status and `holder` its lock.

        False: nothing was set.
        """
        has_ended = fields.get("status") not in (None, *LIVE)
        flat = [x for pair in fields.items() for x in pair]
        may = f",{','.join(earlier)},"
        life_ms = self._keep_ms if has_ended else ""
        (was_set,) = await self._wire.execute(
            [("EVAL", SET_STATUS, 1, self._keys.batch(batch), may, holder, life_ms, *flat)]
        )
        return bool(was_set)

    async def cancel(self, batch: BatchId) -> None:
        """Begins no more of its lines. Changes nothing if it is being finished, or has ended."""
        now = int(clock.now())
        fields: Fields = {"status": "cancelling", "cancelling_at": now, "ending": "cancelled"}
        await self.set_status(batch, ("validating", "in_progress"), fields)

    async def pause(self, batch: BatchId, *, paused: bool) -> None:
        """Pauses or continues a batch. A pause cancels its running lines; they are computed later."""
        await self.set_status(batch, ("validating", "in_progress"), {"paused": int(paused)})

    async def lock(self, batch: BatchId, status: Status, worker: ApiId) -> bool:
        """Takes or renews the batch's lock for its work at `status`. Returns whether the worker has it."""
        values = status, worker, self._keys.api(ApiId("")), _SILENT_MS
        (mine,) = await self._wire.execute([("EVAL", LOCK, 1, self._keys.batch(batch), *values)])
        return bool(mine)

    async def unlock(self, batch: BatchId, worker: ApiId) -> None:
        """Gives the lock back, if the worker has it."""
        await self._wire.execute([("EVAL", UNLOCK, 1, self._keys.batch(batch), worker)])

    async def leave(self, batch: BatchId) -> None:
        """Takes a batch that has ended, and needs nothing more, off the list of live ones."""
        await self._wire.execute([("ZREM", self._keys.batches(), batch)])

    async def counts(self) -> str:
        """Number of times that `count_lines` has counted a batch."""
        (count,) = await self._wire.execute([("GET", self._keys.batch_counts())])
        return (count or b"0").decode(errors="replace")

    async def count_lines(self, batch: BatchId, lines: int, counts: str, holder: str) -> bool:
        """Counts its lines among those of unfinished batches, before it has parts.

        False: `counts` has changed, so another batch may have taken what was left. If `holder` has lost the lock,
        nothing is counted, and `set_parts` says so.
        """
        names = self._keys.batch(batch), self._keys.batch_counts()
        (was_counted,) = await self._wire.execute([("EVAL", COUNT_LINES, 2, *names, holder, lines, counts)])
        return bool(was_counted)

    async def set_parts(self, batch: BatchId, parts: int, holder: str = "") -> bool:
        """Sets the parts to do. The batch is still validating: none is taken yet.

        False: it is validated already, or `holder` has lost the lock.
        """
        names = self._keys.batch(batch), self._keys.todo(batch)
        (was_set,) = await self._wire.execute([("EVAL", SET_PARTS, 2, *names, holder, parts)])
        return bool(was_set)

    async def complete(self, batch: BatchId, fields: Fields) -> bool:
        """Sets fields if the batch is in progress and has no part left: the result of `loads` may be out of date."""
        keys, flat = self._keys, [x for pair in fields.items() for x in pair]
        names = keys.batch(batch), keys.todo(batch), keys.taken(batch)
        (was_completed,) = await self._wire.execute([("EVAL", COMPLETE, 3, *names, *flat)])
        return bool(was_completed)

    async def lead(self, worker: ApiId, parts: int, metrics_at: str = "") -> bool:
        """Notes how many parts this worker takes; returns whether it is the leader for the next seconds.

        `metrics_at`: where its /metrics are, if it has a port.
        """
        lead = "EVAL", LEAD, 1, self._keys.batch_leader(), worker, _LEADER_MS
        notes: list[Command] = [("HSET", self._keys.batch_workers(), worker, parts)]
        if metrics_at:
            notes.append(("HSET", self._keys.batch_ports(), worker, metrics_at))
        return bool((await self._wire.execute([lead, *notes]))[0])

    async def ports(self) -> dict[ApiId, str]:
        """Addresses of the /metrics of live batch workers that have a port."""
        (flat,) = await self._wire.execute([("HGETALL", self._keys.batch_ports())])
        addresses = dict(zip(flat[::2], flat[1::2], strict=True))
        dead_workers = set(await self._gone(list(addresses)))
        return {
            _id(worker): at.decode(errors="replace") for worker, at in addresses.items() if worker not in dead_workers
        }

    async def capacity(self) -> int:
        """Number of parts that all live batch workers can have. Forgets dead ones."""
        (flat,) = await self._wire.execute([("HGETALL", self._keys.batch_workers())])
        takes = dict(zip(flat[::2], flat[1::2], strict=True))
        dead_workers = await self._gone(list(takes))
        if dead_workers:
            names = self._keys.batch_workers(), self._keys.batch_ports()
            await self._wire.execute([("HDEL", key, *dead_workers) for key in names])
        return sum(self._number(worker, parts) or 0 for worker, parts in takes.items() if worker not in dead_workers)

    async def _gone(self, workers: list[bytes]) -> list[bytes]:
        alive = await self._wire.execute([("EXISTS", self._keys.api(_id(worker))) for worker in workers])
        return [worker for worker, lives in zip(workers, alive, strict=True) if not lives]

    async def loads(self, batches: Sequence[BatchId]) -> list[BatchLoad]:
        keys = self._keys
        commands: list[Command] = []
        for batch in batches:
            commands += [
                ("ZCARD", keys.todo(batch)),
                ("HKEYS", keys.taken(batch)),
                ("HMGET", keys.batch(batch), "holder", "holder_at"),
            ]
        clock = ("EXISTS", keys.batches()), ("TIME",)  # of the node that has them
        *replies, _, (seconds, micros) = await self._wire.execute([*commands, *clock])
        oldest = int(seconds) * 1000 + int(micros) // 1000 - _SILENT_MS
        holders = [
            _id(holder) if holder and at and at.isdigit() and int(at) >= oldest else None
            for holder, at in replies[2::3]
        ]
        alive = await self._wire.execute([("EXISTS", keys.api(holder or ApiId(""))) for holder in holders])
        parts = [
            (batch, int(part))
            for batch, taken_parts in zip(batches, replies[1::3], strict=True)
            for part in taken_parts
            if part.isdigit()  # `hand_out` forgets others
        ]
        line_counts = await self._wire.execute([("HLEN", keys.done(batch, part)) for batch, part in parts])
        answer_counts = Counter[BatchId]()
        for (batch, _), lines in zip(parts, line_counts, strict=True):
            answer_counts[batch] += lines
        return [
            BatchLoad(todo, len(taken_parts), holder if lives else None, answer_counts[batch])
            for batch, todo, taken_parts, holder, lives in zip(
                batches, replies[::3], replies[1::3], holders, alive, strict=True
            )
        ]

    async def hand_out(self, counts: dict[BatchId, int]) -> list[PartClaim]:
        """Takes the `counts` number of each batch's parts to send, and its lost parts to send again."""
        keys = self._keys
        tail = keys.api(ApiId("")), _LOST_MS, _SILENT_MS
        commands: list[Command] = [
            ("EVAL", HAND_OUT_PARTS, 3, keys.batch(batch), keys.todo(batch), keys.taken(batch), count, *tail)
            for batch, count in counts.items()
        ]
        return [
            PartClaim(batch, int(part), int(number))
            for batch, flat in zip(counts, await self._wire.execute(commands), strict=True)
            for part, number in zip(flat[::2], flat[1::2], strict=True)
        ]

    async def claim_part(self, ticket: PartClaim, worker: ApiId) -> bool:
        """Claims a part, or renews the claim, for `_SILENT_MS`. Returns whether the worker has it."""
        keys = self._keys
        values = ticket.part, ticket.number, worker
        names = keys.batch(ticket.batch), keys.taken(ticket.batch)
        (mine,) = await self._wire.execute([("EVAL", CLAIM_PART, 2, *names, *values)])
        return bool(mine)

    async def add_result(self, ticket: PartClaim, worker: ApiId, result: Result) -> bool:
        """Writes a line's result. False: another worker has the part by now."""
        keys, batch = self._keys, ticket.batch
        names = keys.batch(batch), keys.taken(batch), keys.done(batch, ticket.part), keys.batch_totals()
        outcome = "completed" if result.problem is None else "failed"
        values = ticket.part, ticket.number, worker, result.number, encode(result), outcome
        tokens = result.prompt, result.cached, result.completion
        (mine,) = await self._wire.execute([("EVAL", ADD_RESULT, 4, *names, *values, *tokens)])
        return bool(mine)

    async def count_lethal(self, batch: BatchId) -> None:
        """Counts a line that is given up because batch workers died with it."""
        await self._wire.execute([("HINCRBY", self._keys.batch(batch), "lethal", 1)])

    async def done(self, batch: BatchId, part: int) -> list[Result]:
        """A part's results that are not in the storage yet."""
        (raws,) = await self._wire.execute([("HVALS", self._keys.done(batch, part))])
        return [decode_result(raw) for raw in raws]

    async def return_part(self, ticket: PartClaim, worker: ApiId, *, done: bool, broke: bool = False) -> None:
        """Gives a part back: `done` (its results are in the storage), to be tried again, or `broke` (counted)."""
        keys, batch = self._keys, ticket.batch
        names = keys.taken(batch), keys.todo(batch), keys.done(batch, ticket.part), keys.batch(batch)
        how = "done" if done else "broke" if broke else "back"
        values = ticket.part, ticket.number, worker, how, MOST_BREAKS
        await self._wire.execute([("EVAL", RETURN_PART, 4, *names, *values)])

    async def forget_parts(self, batch: BatchId, parts: int) -> None:
        """Deletes a batch's parts and their results, once they are in its output and error file."""
        keys = self._keys
        names = [keys.todo(batch), keys.taken(batch), *(keys.done(batch, part) for part in range(parts))]
        handling_names = [
            *(of_part(batch, part) for part in range(parts)),
            *(of_batch(batch, status) for status in LIVE),
        ]
        names += map(keys.handling, handling_names)  # of workers that died with them
        await self._wire.execute([("UNLINK", *names[i : i + _CHUNK]) for i in range(0, len(names), _CHUNK)])

    async def totals(self) -> dict[str, int]:
        """Sums since the deployment began: lines `completed` and `failed`; tokens `prompt`, `cached`, `completion`."""
        (raws,) = await self._wire.execute([("HMGET", self._keys.batch_totals(), *_TOTALS)])
        numbers = {name: self._number(name.encode(), raw) for name, raw in zip(_TOTALS, raws, strict=True) if raw}
        return {name: number for name, number in numbers.items() if number is not None}

    def _number(self, field: bytes, raw: bytes) -> int | None:
        """None, and logged once, for what is none: a hand or another version wrote it."""
        try:
            return int(raw)
        except ValueError:
            if field not in self._odd:
                log.error("number_not_understood", field=repr(field[:100]), value=repr(raw[:100]))
                self._odd.add(field)
            return None


def _id(worker: bytes) -> ApiId:
    return ApiId(worker.decode(errors="replace"))


def _batch(fields: dict[bytes, bytes]) -> Batch | None:
    """Raises: msgspec.MsgspecError."""
    return read_batch(fields) if b"order" in fields else None
