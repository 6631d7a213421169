"""The fleet as Redis knows it, in one round trip."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from app.ids import PoolId
from app.keys import Keys
from app.messages import WIRE_VERSION, Lease, decode_lease
from app.pools import Pool
from app.routing.candidates import Candidate, Limits
from app.store import SNAPSHOT, Wire
from app.telemetry import logger

log = logger(__name__)


class Overlap(Struct, frozen=True):
    """Leading blocks of one prompt at one place."""

    cached: int
    coming: int


class PoolView(Struct, frozen=True):
    candidates: list[Candidate]
    overlaps: list[list[Overlap]]  # for each prompt asked about, one for each candidate
    lately: bool = False  # it has a worker in any state, or had one within the last `patience_s`


class FleetReader:
    def __init__(self, wire: Wire, keys: Keys, pools: Mapping[PoolId, Pool], max_queued: int) -> None:
        self._wire, self._keys = wire, keys
        self._limits = {
            name: Limits(
                max_queued if pool.busy.max_queued is None else pool.busy.max_queued,
                pool.busy.active_blocks,
                pool.busy.queued_tokens,
                pool.disagg.remote_tokens,
                pool.disagg.remote_wait_s,
            )
            for name, pool in pools.items()
        }
        self.weights: dict[
            PoolId, str
        ] = {}  # the version that most workers of a pool had in the last read, if not its own
        self._leases: dict[bytes, Lease] = {}  # decoded: a lease changes twice a second, and every round reads it

    async def read(self, wanted: Mapping[PoolId, Sequence[bytes]]) -> dict[PoolId, PoolView]:
        """Each pool's live places, and how many blocks of each packed prompt (block hashes) they have cached.

        Raises: StoreDown.
        """
        keys = self._keys
        commands = [
            ("EVAL", SNAPSHOT, 1, keys.pool(pool), keys.prefix, pool, *prompts) for pool, prompts in wanted.items()
        ]
        replies = await self._wire.execute(commands)
        known = self._leases
        raws = {row[0] for _limits, _lately, *rows in replies for row in rows}
        self._leases = {raw: lease for raw in raws if (lease := known.get(raw) or _decoded(raw)) is not None}
        return {
            pool: self._view(pool, len(prompts), reply)
            for (pool, prompts), reply in zip(wanted.items(), replies, strict=True)
        }

    async def live(self, pools: Sequence[PoolId]) -> list[Lease]:
        """The leases of the pools' live workers. Raises: StoreDown."""
        views = await self.read(dict.fromkeys(pools, ()))
        return [c.lease for view in views.values() for c in view.candidates if c.rank == 0]

    def limits(self, pool: PoolId, changed: Sequence[bytes] = ()) -> Limits:
        """The pool's limits, with those `changed` at run time: a hash as Redis returns it."""
        limits = self._limits[pool]
        if not changed:
            return limits
        fields = {f.decode(): v.decode() for f, v in zip(changed[::2], changed[1::2], strict=True)}
        try:
            return msgspec.convert(msgspec.structs.asdict(limits) | fields, Limits, strict=False)
        except msgspec.ValidationError as exc:  # not written by our own endpoint, which checks
            log.warning("limits_not_understood", pool=pool, error=str(exc))
            return limits

    def _view(self, pool: PoolId, prompts: int, reply: Sequence[Any]) -> PoolView:
        limits = self.limits(pool, reply[0])
        candidates = []
        overlaps: list[list[Overlap]] = [[] for _ in range(prompts)]
        for raw, rank, requests, blocks, tokens, waiting, head_ms, pulls, aside, aside_blocks, *found in reply[2:]:
            if raw not in self._leases:
                continue
            sums = requests, blocks, tokens, waiting, head_ms / 1000, pulls, aside, aside_blocks
            candidates.append(Candidate(self._leases[raw], limits, rank, *sums))
            for i, overlap in enumerate(overlaps):
                overlap.append(Overlap(found[2 * i], found[2 * i + 1]))
        versions = Counter(c.lease.state.weights for c in candidates)
        self.weights[pool] = versions.most_common(1)[0][0] if versions else ""
        return PoolView(candidates, overlaps, bool(reply[1]))


def _decoded(raw: bytes) -> Lease | None:
    """None if the worker's wire version is neither ours nor a neighbour: nothing is placed there."""
    try:
        lease = decode_lease(raw)
    except msgspec.DecodeError as exc:
        log.error("lease_not_understood", error=str(exc))
        return None
    if abs(lease.wire - WIRE_VERSION) > 1:
        log.error("worker_of_another_version", worker=lease.worker.id, wire=lease.wire)
        return None
    return lease
