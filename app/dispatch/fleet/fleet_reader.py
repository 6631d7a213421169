"""The fleet as Redis knows it, in one round trip; what its caches hold may come from another server at the same time.

A round of placement reads what is reserved, and which caches have its prompts; of leases only what has changed.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from app.dispatch.fleet.fleet_leases import FleetLeases
from app.dispatch.fleet.index_reader import IndexReader
from app.dispatch.fleet.loads import ENTRY
from app.dispatch.fleet.pool_fleet import PoolView
from app.ids import PlaceId, PoolId, WorkerId, place_id
from app.intervals import Intervals
from app.keys import Keys
from app.messages.lease import Grid, Lease
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


class FleetReader(FleetLeases):
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
        """`look_s`, `token_redis`: as `FleetLeases` has them. `index`: of the prefix index, if it is apart."""
        super().__init__(wire, keys, pools, look_s, token_redis, broker_apart=broker_apart)
        self.index = IndexReader(index or wire, wire)
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
        # The version that most workers of a pool had in the last read, if not its own.
        self.weights: dict[PoolId, str] = {}

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

    def _question(self, pool: PoolId, prompts: Sequence[bytes], grid: Grid) -> "_Question":
        keys, fleet = self._keys, self._fleets[pool]
        commands: list[Command] = [
            fleet.changes(keys.changed(pool)),
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
