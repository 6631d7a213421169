"""The fleet as Redis knows it, in one round trip; what its caches hold may come from another server at the same time.

Leases are kept here, and only those that have changed are read again: a round of placement reads what is reserved, and
which caches have its prompts. What a lease says of load and speeds is as old as the last `refresh`.
"""

import asyncio
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from app.dispatch.fleet.index_reader import IndexReader
from app.dispatch.fleet.loads import ENTRY
from app.dispatch.fleet.pool_fleet import PoolFleet, PoolView
from app.ids import PlaceId, PoolId, WorkerId, place_id
from app.intervals import Intervals
from app.keys import Keys
from app.kv.groups import grids_of
from app.messages.lease import Grid, Lease, decode_lease
from app.messages.media import MediaKind
from app.messages.wire import WIRE_VERSION
from app.pools.schema import Pool
from app.routing.candidates import Matches, PlaceLimits
from app.store import Command, Wire, clock
from app.store.scripts import COMING, MATCH, MATCH_POINTS, MATCH_TIERS
from app.telemetry import logger

log = logger(__name__)

# Wire version 1 counts in a hash of each worker; in the order of an entry, for its format.
_FIELDS = (
    "requests.{0}",
    "blocks.{0}",
    "tokens.{0}",
    "waiting.{0}",
    "pulls.{0}",
    "requests.{0}a",
    "blocks.{0}a",
    "since.{0}",
)
# How seldom a process reads all leases when others look, too: for the speeds and loads that they tell.
_REFRESH_S, _REFRESH_S_PER_WORKER = 2.0, 0.015
_FEW = 100  # workers; of more, whether all have leases is counted, which takes a quarter of the time of reading these
_CLAIM = 0.8  # of the time between two looks, for which one process has claimed to read them: timers are not exact


class FleetReader:
    def __init__(
        self,
        wire: Wire,
        keys: Keys,
        pools: Mapping[PoolId, Pool],
        max_queued: int,
        look_s: float = Intervals().look_s,
        token_redis: int = 0,
        broker_apart: bool = False,
        index: Wire | None = None,
    ) -> None:
        """`look_s`: how often some process of the deployment is to look whether all workers have leases.

        `token_redis`: `Job.token_redis` of this process's jobs. `index`: of the prefix index, if it is apart.
        """
        self.index = IndexReader(index or wire, wire)
        self._token_redis, self._broker_apart = token_redis, broker_apart
        self._claim_ms = max(1, round(look_s * 1000 * _CLAIM))
        self._wire, self._keys = wire, keys
        self._limits = {
            name: PlaceLimits(
                max_queued if pool.busy.max_queued is None else pool.busy.max_queued,
                pool.busy.active_blocks,
                pool.busy.queued_tokens,
                pool.disagg.remote_tokens,
                pool.disagg.remote_wait_s,
            )
            for name, pool in pools.items()
        }
        self._models = {name: pool.model for name, pool in pools.items()}
        self._misfits: dict[WorkerId, str] = {}  # as last told
        # The version that most workers of a pool had in the last read, if not its own.
        self.weights: dict[PoolId, str] = {}
        # What their prompts are hashed by: as most workers had it in the last read, and the pool's own before.
        self.grids = grids_of(pools)
        self._fleets = {name: PoolFleet() for name in pools}
        self._refreshed = dict.fromkeys(pools, -math.inf)  # by `look`, monotonic

    async def read(
        self, hashes: Mapping[PoolId, Sequence[bytes]], grids: Mapping[PoolId, Grid] | None = None
    ) -> dict[PoolId, PoolView]:
        """Each pool's live places, and how many blocks of each packed prompt (block hashes) they have cached.

        `grids`: by which the prompts are hashed, as of then; None: as known now. Raises: StoreDown.
        """
        grids = dict(self.grids) if grids is None else grids
        questions: dict[PoolId, _Question] = {}
        commands, match_commands = list[Command](), dict[PoolId, Command]()
        if unknown := [pool for pool in hashes if self._fleets[pool].known < 0]:
            await self.refresh(unknown)
        for pool, prompts in hashes.items():
            question = questions[pool] = self._question(pool, prompts, grids[pool])
            commands += question.commands
            if prompts:
                match_commands[pool] = self._match(pool, question, prompts)
        replies, index_replies = await self._both(commands, list(match_commands.values()))
        matches: dict[PoolId, Any] = dict(zip(match_commands, index_replies, strict=True))
        answers, changes = dict[PoolId, list[Any]](), dict[PoolId, Sequence[bytes]]()
        for pool, question in questions.items():
            answers[pool], replies = list(replies[: len(question.commands)]), replies[len(question.commands) :]
            if answers[pool][0]:
                changes[pool] = answers[pool][0]
            if question.guessed and matches.get(pool) is not None:
                matches[pool] = await self._all_guessed(pool, question, hashes[pool], matches[pool])
        if changes:
            await self._take(changes)
        views, empty = dict[PoolId, PoolView](), list[PoolId]()
        for pool, question in questions.items():
            if question.older:
                self._fleets[pool].replace(self._older(question, answers[pool].pop(3)))
            views[pool] = self._view(pool, question, answers[pool], matches.get(pool))
            if not views[pool].candidates:
                empty.append(pool)
        return views | await self._seen_lately(empty, views) if empty else views

    async def _seen_lately(self, pools: Sequence[PoolId], views: Mapping[PoolId, PoolView]) -> dict[PoolId, PoolView]:
        """The views of pools without a place, with whether they had a worker lately. Raises: StoreDown."""
        sightings = await self._wire.execute([("EXISTS", self._keys.seen(pool)) for pool in pools])
        return {pool: replace(views[pool], lately=bool(was)) for pool, was in zip(pools, sightings, strict=True)}

    async def _both(self, commands: list[Command], questions: list[Command]) -> tuple[Sequence[Any], Sequence[Any]]:
        """The replies of Redis, and of the index, which is None while it is away. Raises: StoreDown."""
        if not self.index.is_apart:
            replies = await self._wire.execute(commands + questions)
            return replies[: len(commands)], replies[len(commands) :]
        replies, index_replies = await asyncio.gather(self._wire.execute(commands), self.index.ask(questions))
        return replies, index_replies or [None] * len(questions)

    async def _all_guessed(
        self, pool: PoolId, question: "_Question", prompts: Sequence[bytes], reply: Sequence[Any]
    ) -> list[Any]:
        """The reply of `match.lua` with the guesses that it left out, of one call after the other. Raises: StoreDown.

        Redis does other work between the calls.
        """
        caches, guesses = [one[0] for one in reply], [list(one[1]) for one in reply]
        while missing_count := len(question.guessed) - len(guesses[0]):
            _, more = await self._both([], [self._match(pool, question, prompts, len(guesses[0]))])
            for n, row in enumerate(guesses):
                row.extend([0] * missing_count if more[0] is None else more[0][n][1])
        return list(zip(caches, guesses, strict=True))

    async def refresh(self, pools: Sequence[PoolId]) -> None:
        """Reads all leases of these pools. Raises: StoreDown."""
        keys = self._keys
        questions = [(("ZRANGE", keys.changed(p), -1, -1, "WITHSCORES"), ("HKEYS", keys.pool(p))) for p in pools]
        replies = await self._wire.execute(list(chain.from_iterable(questions)))
        members = {
            pool: [WorkerId(w.decode()) for w in reply] for pool, reply in zip(pools, replies[1::2], strict=True)
        }
        leases = await self._read_leases([worker for workers in members.values() for worker in workers])
        for pool, last in zip(pools, replies[::2], strict=True):
            fleet = self._fleets[pool]
            fleet.known = float(last[1]) if last else 0.0
            fleet.members = set(members[pool])
            fleet.lapsed = {worker for worker in members[pool] if worker not in leases}
            self._set(pool, {worker: leases.get(worker) for worker in members[pool]})

    def questions(self) -> list[Command]:
        """Commands of one look: which leases have changed, and whether this process is the one that looks at all."""
        return [c for pool in self._fleets for c in (self._changes(pool), self._claim(pool))]

    async def answered(self, replies: Sequence[Any], now: float) -> None:
        """The replies to `questions`; `now`: monotonic. Reads leases. Raises: StoreDown."""
        claims = dict(zip(self._fleets, replies[1::2], strict=True))
        due = [
            pool
            for pool, fleet in self._fleets.items()
            if fleet.known < 0
            or (claims[pool] == b"OK" and len(fleet.members) <= _FEW)
            or now - self._refreshed[pool] >= max(_REFRESH_S, _REFRESH_S_PER_WORKER * len(fleet.members))
        ]
        await self.refresh(due)
        changes = dict(zip(self._fleets, replies[::2], strict=True))
        await self._take({pool: entries for pool, entries in changes.items() if pool not in due})
        others = await self._with_others([pool for pool in self._fleets if claims[pool] == b"OK" and pool not in due])
        await self.refresh(others)
        self._refreshed |= dict.fromkeys([*due, *others], now)

    async def _with_others(self, pools: Sequence[PoolId]) -> list[PoolId]:
        """Pools with other members than this process knows, or one without a lease. Raises: StoreDown."""
        known_workers = {pool: self._fleets[pool].members for pool in pools if self._fleets[pool].members}
        commands = [
            (("HLEN", self._keys.pool(pool)), ("EXISTS", *map(self._keys.worker, workers)))
            for pool, workers in known_workers.items()
        ]
        replies = await self._wire.execute(list(chain.from_iterable(commands)))
        counts = zip(known_workers.items(), replies[::2], replies[1::2], strict=True)
        return [pool for (pool, workers), members, live in counts if not members == live == len(workers)]

    def forget(self, pools: Sequence[PoolId]) -> None:
        """Forgets what is known of the pools' workers, since it is wrong: the next read reads them all."""
        for pool in pools:
            self._fleets[pool].known = -1.0

    async def live(self, pools: Sequence[PoolId]) -> list[Lease]:
        """The leases of the pools' live workers. Raises: StoreDown."""
        await self.refresh(pools)
        return [lease for pool in pools for lease in self._fleets[pool].leases.values()]

    def leases(self, pools: Iterable[PoolId]) -> dict[WorkerId, Lease]:
        """Returns those of the pools' workers, as of the last look."""
        return {worker: lease for pool in pools for worker, lease in self._fleets[pool].leases.items()}

    def has_worker(self, pools: Collection[PoolId]) -> bool:
        """Whether any of the pools has one, as of the last look; also if nobody has looked yet."""
        fleets = [self._fleets[pool] for pool in pools]
        return any(fleet.leases or fleet.known < 0 for fleet in fleets)

    def takes(self, pools: Collection[PoolId], kind: MediaKind) -> bool:
        """Whether any of their workers takes it in prompts, as of the last look; also if none is known."""
        workers = [lease.worker for pool in pools for lease in self._fleets[pool].leases.values()]
        return not workers or any(kind in worker.takes for worker in workers)

    def missing(self, workers: Mapping[WorkerId, PoolId]) -> dict[WorkerId, PoolId]:
        """Workers without a lease that is understood, as of the last look: those that requests are on, and members."""
        leased_workers = {worker for fleet in self._fleets.values() for worker in fleet.leases}
        lapsed_workers = {worker: pool for pool, fleet in self._fleets.items() for worker in fleet.lapsed}
        return lapsed_workers | {worker: pool for worker, pool in workers.items() if worker not in leased_workers}

    def removed(self, workers: Mapping[WorkerId, PoolId]) -> None:
        """Notes that the workers are no members of their pools any more."""
        for worker, pool in workers.items():
            self._fleets[pool].lapsed.discard(worker)
            self._fleets[pool].members.discard(worker)

    def limits(self, pool: PoolId, changes: Sequence[bytes] = ()) -> PlaceLimits:
        """The pool's limits, with those `changes` at run time: a hash as Redis returns it."""
        limits = self._limits[pool]
        if not changes:
            return limits
        fields = {f.decode(): v.decode() for f, v in zip(changes[::2], changes[1::2], strict=True)}
        try:
            return msgspec.convert(msgspec.structs.asdict(limits) | fields, PlaceLimits, strict=False)
        except msgspec.ValidationError as exc:  # not written by our own endpoint, which checks
            log.warning("limits_not_understood", pool=pool, error=str(exc))
            return limits

    def _claim(self, pool: PoolId) -> Command:
        return "SET", self._keys.watched(pool), "1", "NX", "PX", self._claim_ms

    def _changes(self, pool: PoolId) -> Command:
        lower_bound = f"({self._fleets[pool].known:.0f}"
        return "ZRANGE", self._keys.changed(pool), lower_bound, "+inf", "BYSCORE", "WITHSCORES"

    def _question(self, pool: PoolId, prompts: Sequence[bytes], grid: Grid) -> "_Question":
        keys, fleet = self._keys, self._fleets[pool]
        commands: list[Command] = [
            self._changes(pool),
            ("HGETALL", keys.limits(pool)),
            ("HGETALL", keys.loads(pool)),
        ]
        if fleet.older:
            commands.append(("MGET", *(keys.worker(worker) for worker, _rank in fleet.older)))
            for worker, rank in fleet.older:
                commands.append(("HMGET", keys.load(worker), *(f.format(rank) for f in _FIELDS)))
        if prompts:
            commands.append(("EVAL", COMING, 1, keys.starting(pool), fleet.left, *prompts))
        # An engine that reports no events tells nothing of its tiers either.
        looks_up_tiers = fleet.has_tiers and not fleet.guessed
        return _Question(commands, fleet.guessed, fleet.older, bool(prompts), has_tiers=looks_up_tiers, grid=grid)

    def _match(self, pool: PoolId, question: "_Question", prompts: Sequence[bytes], first: int = 0) -> Command:
        """`first`: how many of the first guessed places are; if any is, the caches that tell of themselves are, too."""
        index, _ = self._keys.cached(pool)
        if question.has_tiers:
            return "EVAL", MATCH_TIERS, 2, index, self._keys.tiered(pool)[0], *prompts
        guesses = list(map(partial(self._keys.predicted, pool), question.guessed[first:]))
        now = round(clock.now() * 1000)
        if question.grid.everywhere:
            return "EVAL", MATCH, 1 + len(guesses), index, *guesses, now, int(not first), *prompts
        order = numbers_by_beginning(prompts) if guesses else ""
        return "EVAL", MATCH_POINTS, 1 + len(guesses), index, *guesses, now, int(not first), order, *prompts

    def _older(self, question: "_Question", raws: Sequence[bytes | None]) -> dict[WorkerId, Lease | None]:
        """The leases of workers of wire version 1, which tell no change."""
        workers = [worker for worker, _rank in question.older]
        return {worker: None if raw is None else self._decoded(raw) for worker, raw in zip(workers, raws, strict=True)}

    async def _take(self, changes: Mapping[PoolId, Sequence[bytes]]) -> None:
        """Reads the leases that have changed: for each pool worker, score, worker, score, …. Raises: StoreDown."""
        changed_workers = {
            pool: [WorkerId(w.decode()) for w in entries[::2]] for pool, entries in changes.items() if entries
        }
        leases = await self._read_leases([worker for workers in changed_workers.values() for worker in workers])
        for pool, workers in changed_workers.items():
            fleet = self._fleets[pool]
            if fleet.known >= 0:  # else all are read next
                fleet.known = max(fleet.known, *map(float, changes[pool][1::2]))
            fleet.members = fleet.members.difference(workers).union(w for w in workers if w in leases)
            self._set(pool, fleet.leases | {worker: leases.get(worker) for worker in workers})

    def _set(self, pool: PoolId, leases: Mapping[WorkerId, Lease | None]) -> None:
        fleet = self._fleets[pool]
        fleet.set(leases)
        self.grids[pool] = fleet.grid or self.grids[pool]

    async def _read_leases(self, workers: Sequence[WorkerId]) -> dict[WorkerId, Lease | None]:
        """The leases of the workers that live; None: the lease isn't understood. Raises: StoreDown."""
        if not workers:
            return {}
        (raws,) = await self._wire.execute([("MGET", *map(self._keys.worker, workers))])
        return {worker: self._decoded(raw) for worker, raw in zip(workers, raws, strict=True) if raw is not None}

    def _view(
        self, pool: PoolId, question: "_Question", reply: Sequence[Any], cache_reply: Sequence[Any] | None
    ) -> PoolView:
        _changes, changed_limits, loads, *more = reply
        fleet, limits = self._fleets[pool], self._limits[pool]
        if changed_limits:
            limits = self.limits(pool, changed_limits)
        older = {}
        for (worker, rank), fields in zip(question.older, more, strict=False):
            older[place_id(worker, rank).encode()] = ENTRY.pack(*(max(0, int(field or 0)) for field in fields))
        candidates = fleet.candidates(dict(zip(loads[::2], loads[1::2], strict=True)), limits, older)
        self.weights[pool] = fleet.weights
        same = fleet.grid in (None, question.grid)
        if not question.has_prompts:
            matches = []
        elif not same:  # its workers have changed meanwhile: the hashes say nothing of them
            matches = [Matches()] * len(more[-1])
        elif question.has_tiers:
            matches = fleet.tiered_matches(more[-1], cache_reply)
        else:
            matches = fleet.matches(more[-1], cache_reply, question.guessed)
        return PoolView(
            candidates,
            matches,
            fleet.indices,
            homes=fleet.homes,
            lines=fleet.lines,
            speeds=fleet.speeds,
            lately=bool(candidates),
            looked_up=same and cache_reply is not None,
        )

    def _decoded(self, raw: bytes) -> Lease | None:
        """None if the worker's wire version is neither ours nor a neighbour; as drained if we would not hear of it."""
        try:
            lease = decode_lease(raw)
        except msgspec.DecodeError as exc:
            log.error("lease_not_understood", error=str(exc))
            return None
        if abs(lease.wire - WIRE_VERSION) > 1:
            log.error("worker_of_another_version", worker=lease.worker.id, wire=lease.wire)
            return None
        misfit = self._misfit(lease)
        if self._misfits.get(lease.worker.id, "") != misfit:  # else leases are read too often to tell it each time
            self._misfits[lease.worker.id] = misfit
            if misfit:
                log.error(misfit, worker=lease.worker.id, pool=lease.worker.pool)
        return replace(lease, draining=True) if misfit else lease

    def _misfit(self, lease: Lease) -> str:
        """The reason why its answers would be wrong, or not come here; or "".

        The cause is that its settings differ from this process's.
        """
        if lease.worker.model not in ("", self._models.get(lease.worker.pool)):
            return "worker_of_another_model"
        if lease.token_redis < self._token_redis:
            return "worker_lacks_token_redis"
        if lease.broker_apart != self._broker_apart:
            return "worker_has_another_broker"
        return ""


def numbers_by_beginning(prompts: Sequence[bytes]) -> str:
    """The prompts' numbers, from 1, those that begin alike side by side; as `match_points.lua` has them."""
    return " ".join(str(at + 1) for at in sorted(range(len(prompts)), key=prompts.__getitem__))


class _Question(Struct, frozen=True):
    """The commands that read a pool, and what of its workers they depend on."""

    commands: list[Command]
    guessed: list[PlaceId]
    older: list[tuple[WorkerId, int]]
    has_prompts: bool
    has_tiers: bool
    grid: Grid
