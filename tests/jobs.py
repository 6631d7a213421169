"""Jobs, and requests in flight, that tests make up."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.dispatch.event_queue import EventQueue
from app.dispatch.inflight import InFlight, RoutingHints
from app.dispatch.placing.placement_round import PlacementRound
from app.ids import PoolId
from app.kv.groups import grids_of
from app.messages.job import Job, Sampling
from app.pools.schema import Pool
from app.routing.candidates import Candidate
from tests.leases import pool_view

POOL = PoolId("pool")
_USUAL = {"attempt": 0, "reply_to": "a", "sampling": Sampling(max_tokens=8), "deadline": 2e9}


def job(prompt: Sequence[int] = (1, 2), name: str = "r", **fields: Any) -> Job:
    """A job, with other values in any fields."""
    return Job(**{"request": name, "prompt": [*prompt]} | _USUAL | fields)


def in_flight(of: Job, pool: PoolId = POOL, prefill: PoolId | None = None, **more: Any) -> InFlight:
    """A request for one pool, or for two."""
    hints = more.pop("hints", RoutingHints())
    return InFlight(of, ((pool,),), EventQueue(), hints, ((prefill,),) if prefill else (), **more)


def placing(
    requests: Sequence[InFlight], pools: Mapping[PoolId, Pool], places: Mapping[PoolId, Sequence[Candidate]]
) -> PlacementRound:
    """A round that sees these places."""
    round_ = PlacementRound(requests, pools, grids_of(pools))
    round_.views = {pool: pool_view(candidates) for pool, candidates in places.items()}
    return round_
