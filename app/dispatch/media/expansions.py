"""Learns what media become in prompts of models whose engines alone know it: asks a worker once, then remembers it.

It depends on the medium's shape only. It is kept here, and in Redis for other replicas, as runs of equal tokens; a real
answer corrects it.
"""

import asyncio
import random
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from itertools import chain, groupby
from typing import NamedTuple

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from app.bounded.turns import CLIENT, Turns
from app.dispatch.fleet.fleet_reader import FleetReader
from app.dispatch.fleet.orders import replies
from app.errors import NoWorker, RequestError, StoreDown
from app.ids import PoolId, WorkerId
from app.keys import Keys
from app.messages.commands import ExpandMedia, decode_runs
from app.messages.media import MediaKind, MediaSign
from app.messages.wire import encode
from app.store import Wire
from app.telemetry import logger

log = logger(__name__)

MOST = 20_000  # of one model, in Redis; and here, of all of them
_KEPT_S = 30 * 24 * 3600
_ASKED_AT_ONCE, _MOST_WAITING = 4, 64  # questions of this process; of one client
_WORKER_S = 20.0  # for an answer of one worker
_TRIES = 3  # workers


class Shown(NamedTuple):
    """Names an expansion by all that it depends on."""

    sign: MediaSign
    shape: tuple[int, ...]  # as in `Media`
    number: int = 0  # how many of the kind are before it, if that matters
    of: int = 1  # how many of the kind the prompt has, if that matters

    @property
    def field(self) -> str:
        return f"{self.sign.kind}:{'x'.join(map(str, self.shape))}:{self.number}" + (
            f":{self.of}" if self.of > 1 else ""
        )

    @property
    def key(self) -> tuple[str, str]:
        return self.sign.digest, self.field


class Expansions:
    def __init__(self, redis: "Redis", wire: Wire, keys: Keys, fleet: FleetReader) -> None:
        self._redis, self._wire, self._keys, self._fleet = redis, wire, keys, fleet
        self._known: OrderedDict[tuple[str, str], list[int]] = OrderedDict()  # runs: a token, how often, …
        self._asking: dict[tuple[str, str, str], asyncio.Task[list[int]]] = {}  # by client, and then as `_known`
        self._correcting: set[asyncio.Task[None]] = set()
        self._turns = Turns(_ASKED_AT_ONCE, _MOST_WAITING, "pictures of new sizes")

    async def signs(self, pools: Sequence[PoolId]) -> dict[MediaKind, MediaSign]:
        """Returns how each kind is written about which their workers can be asked.

        Raises: StoreDown; NoWorker if there is none to ask.
        """
        if not (sign_counts := self._told(pools)):
            if not await self._fleet.live(pools):
                raise NoWorker
            sign_counts = self._told(pools)
        return {
            kind: max(signs.items(), key=lambda one: (one[1], one[0].digest))[0] for kind, signs in sign_counts.items()
        }

    def known_signs(self, pools: Sequence[PoolId]) -> set[MediaKind]:
        return set(self._told(pools))

    async def look(self, versions: Iterable[Shown]) -> None:
        """Reads what other replicas know of these. Raises: StoreDown."""
        if missing := [one for one in versions if one.key not in self._known]:
            await self._read(missing)

    def correct_soon(self, expansions: Iterable[tuple[Shown, Sequence[int] | None]]) -> None:
        """An engine has expanded them to these tokens; None: to others than are known."""
        for name, tokens in expansions:
            task = asyncio.create_task(self._forget(name) if tokens is None else self._keep(name, _runs(tokens)))
            self._correcting.add(task)
            task.add_done_callback(self._corrected)

    def _corrected(self, task: "asyncio.Task[None]") -> None:
        self._correcting.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None:  # another answer does it
            log.warning("media_size_not_corrected", error=repr(exc))

    async def _forget(self, version: Shown) -> None:
        self._known.pop(version.key, None)
        await self._wire.execute([("HDEL", self._keys.expansions(version.sign.digest), version.field)])

    def _told(self, pools: Iterable[PoolId]) -> dict[MediaKind, Counter[MediaSign]]:
        sign_counts: dict[MediaKind, Counter[MediaSign]] = {}
        for sign in (sign for lease in self._fleet.leases(pools).values() for sign in lease.worker.signs):
            sign_counts.setdefault(sign.kind, Counter())[sign] += 1
        return sign_counts

    async def tokens(self, version: Shown, pools: Sequence[PoolId]) -> list[int]:
        """Returns token ids.

        Raises: RequestError for a shape that the model can't take; Saturated, StoreDown; NoWorker if none can be asked.
        """
        if (runs := self._known.get(version.key)) is None:
            # Not another client's, which may stand far behind in that one's line.
            question = (CLIENT.get(), *version.key)
            if (asking := self._asking.get(question)) is None:
                # A task of its own: another request may wait for it when this one is cancelled.
                asking = self._asking[question] = asyncio.create_task(self._ask(version, pools))
                asking.add_done_callback(lambda task: self._asked_for(question, task))
            runs = await asyncio.shield(asking)
        else:
            self._known.move_to_end(version.key)
        return list(chain.from_iterable([token] * count for token, count in zip(runs[::2], runs[1::2], strict=True)))

    def _asked_for(self, question: tuple[str, str, str], task: "asyncio.Task[list[int]]") -> None:
        self._asking.pop(question, None)
        if not task.cancelled() and task.exception() is not None:  # those who waited have it, if anybody did
            log.info("media_size_not_learned", field=question[-1])

    async def _ask(self, version: Shown, pools: Sequence[PoolId]) -> list[int]:
        async with self._turns.turn():
            if (earlier_runs := self._known.get(version.key)) is not None:  # meanwhile, for another client
                return earlier_runs
            runs = _runs(await self._asked(version, pools))
        await self._keep(version, runs)
        return runs

    async def _asked(self, version: Shown, pools: Sequence[PoolId]) -> Sequence[int]:
        def question(id_: str) -> ExpandMedia:
            return ExpandMedia(id_, version.sign.kind, version.shape, version.number, version.of)

        reason = "no worker has this model's files any more"
        for worker in self._able(version.sign, pools)[:_TRIES]:
            try:
                answers = replies(self._redis, self._keys, [worker], question, _WORKER_S)
                (reply,) = [reply async for reply in answers]
            except (RedisError, OSError) as exc:
                raise StoreDown(f"Redis does not answer: {exc!r}") from exc
            if reply.done:
                return reply.expansion
            if reply.refused:
                raise RequestError(reply.reason)
            reason = reply.reason
            log.warning("media_size_not_told", worker=worker, shape=version.shape, reason=reason)
        raise NoWorker(f"No worker could tell what this becomes in a prompt: {reason}.")

    def _able(self, sign: MediaSign, pools: Sequence[PoolId]) -> list[WorkerId]:
        """Lists those that compute first: others leave soon, or sleep."""
        leases = [lease for lease in self._fleet.leases(pools).values() if sign in lease.worker.signs]
        random.shuffle(leases)
        return [lease.worker.id for lease in sorted(leases, key=lambda lease: lease.draining)]

    async def _read(self, missing: Sequence[Shown]) -> None:
        commands = [("HGET", self._keys.expansions(one.sign.digest), one.field) for one in missing]
        for one, raw in zip(missing, await self._wire.execute(commands), strict=True):
            if raw is not None:
                try:
                    self._remember(one, decode_runs(raw))
                except msgspec.DecodeError as exc:
                    log.error("media_size_not_understood", error=str(exc))

    async def _keep(self, version: Shown, runs: list[int]) -> None:
        """Keeps it here and in Redis, where another one goes if there are too many. Raises: StoreDown."""
        self._remember(version, runs)
        key = self._keys.expansions(version.sign.digest)
        *_, count = await self._wire.execute(
            [
                ("HSET", key, version.field, encode(runs)),
                ("EXPIRE", key, _KEPT_S),
                ("HLEN", key),
            ]
        )
        if count > MOST:
            (fields,) = await self._wire.execute([("HRANDFIELD", key, count - MOST)])
            await self._wire.execute([("HDEL", key, *fields)])

    def _remember(self, version: Shown, runs: list[int]) -> None:
        self._known[version.key] = runs
        self._known.move_to_end(version.key)
        while len(self._known) > MOST:
            self._known.popitem(last=False)


def _runs(tokens: Iterable[int]) -> list[int]:
    return [number for token, run in groupby(tokens) for number in (token, sum(1 for _ in run))]
