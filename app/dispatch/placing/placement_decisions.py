"""The decision about one request of a round, and the commands that carry it out."""

import time
from collections.abc import Mapping
from itertools import count
from random import Random

from msgspec.structs import replace

from app.dispatch.inflight import InFlight
from app.dispatch.placing.placement_commands import Placing, expected_tokens, placement, prediction
from app.dispatch.placing.placement_round import PlacementRound
from app.dispatch.placing.tenant_shares import TenantShares
from app.errors import DeadlineOver, NoWorker, Saturated
from app.ids import PoolId
from app.keys import Keys
from app.kv.blocks import HASH_BYTES
from app.kv.groups import blocks_of_step
from app.messages.events import Done
from app.pools.schema import Pool
from app.routing.candidates import ALL, Placement
from app.store import Command
from app.telemetry import RoutingMeters


class PlacementDecisions:
    def __init__(self, keys: Keys, pools: Mapping[PoolId, Pool], shares: TenantShares, *, broker_apart: bool) -> None:
        self._keys, self._pools, self._shares, self._broker_apart = keys, pools, shares, broker_apart
        self._rng = Random()  # noqa: S311 (spreads load, guards nothing)
        self._turns = count()
        self.meters = {name: RoutingMeters(name) for name in pools}

    def decide(self, round_: PlacementRound, inflight: InFlight) -> tuple[Placing, list[Command]]:
        """The request's placing, and commands that predict what caches will have.

        Raises: DeadlineOver, NoWorker, Saturated; what `PlacementRound.decide` raises.
        """
        began = time.perf_counter()
        if time.monotonic() > inflight.ends_at:
            raise DeadlineOver
        room = self._shares.room(inflight, round_.seats)
        try:
            if round_.full and (inflight.line, room) in round_.full:
                raise Saturated
            places = round_.assign(inflight, self._rng, next(self._turns), room)
        except Saturated:
            if room is not ALL:
                round_.full.add((inflight.line, room))
            raise
        except NoWorker as exc:
            raise exc.of(self._pools[inflight.groups[0][0]].model) from None
        encoders = inflight.attempt.encoders if round_.encodes else 0
        first, apart = round_.lease(places[encoders]).worker, self._broker_apart
        placing = placement(self._keys, round_.grids, inflight, places, first, encoders=encoders, broker_apart=apart)
        self._shares.placed(inflight, places[encoders:], round_.lease(places[-1]))
        return placing, self._predictions(round_, inflight, places, encoders, began)

    def _predictions(
        self, round_: PlacementRound, inflight: InFlight, places: list[Placement], encoders: int, began: float
    ) -> list[Command]:
        """Notes what is expected of the places' caches, and returns the commands that tell others."""
        predictions, cached_tokens = list[Command](), -1
        for to in places[encoders:]:
            grid, lease = round_.grids[to.pool], round_.lease(to)
            if not lease.worker.kv_events:
                predictions += prediction(self._keys, self._pools[to.pool], grid, inflight, to, lease=lease)
            is_known = self._pools[to.pool].routing.policy == "kv" and round_.views[to.pool].looked_up
            cached_tokens = expected_tokens(inflight, places, lease, grid) if is_known else -1
            points = len(inflight.attempt.hashes(grid, inflight.job.weights or "")) // HASH_BYTES
            blocks, took = points * blocks_of_step(lease.worker), time.perf_counter() - began
            self.meters[to.pool].decided(to.cached, blocks, took, to.tiered.host, to.tiered.store)
        inflight.attempt = replace(inflight.attempt, expected=cached_tokens)
        return predictions

    def audit(self, inflight: InFlight, end: Done) -> None:
        """Compares what it was expected to find in a cache with what it found."""
        if inflight.attempt.expected >= 0:
            self.meters[inflight.job.stages[-1].pool].audited(inflight.attempt.expected, end.cached_tokens)
