"""The fleet as it is shown to operators: pools, workers, requests, and prefixes that prompts share."""

from typing import Annotated, Any

from typing_extensions import TypedDict

from app.dispatch.observing.timeline_types import RecentEnded, RecentRunning
from app.ids import PlaceId, PoolId, WorkerId
from app.messages.lease import Speeds
from app.metric_families import WorkerState
from app.schemas.answers import as_struct


class WorkerBlocks(TypedDict, closed=True):
    """KV blocks of all ranks."""

    total: int
    held: int  # by requests
    lent: int  # to other workers
    cached: int | None  # null: the index does not tell it


class Reserved(TypedDict, closed=True):
    requests: int
    blocks: int
    without_first_token: int
    tokens_to_compute: int
    blocks_to_pull: int


class FleetWorker(TypedDict, closed=True):
    id: WorkerId
    host: str
    engine: str  # and its version
    state: WorkerState
    weights: str
    ranks: int
    adapters: list[str]
    seats: int
    running: int
    waiting: int
    aside: int
    block_size: int
    blocks: WorkerBlocks
    by_load: str  # why nobody looks for prompts in its caches
    reserved: Reserved
    speeds: Annotated[dict[str, Any], as_struct(Speeds)]


class LostWorker(TypedDict, closed=True):
    id: WorkerId
    at: float  # seconds since the epoch, when it was found dead


class FleetPool(TypedDict, closed=True):
    pool: PoolId
    model: str
    engine: str
    role: str
    task: str
    held: int  # requests for its model, at all API replicas, for which no worker has room
    workers: list[FleetWorker]
    lost: list[LostWorker]  # those that died within the last minute


class Fleet(TypedDict, closed=True):
    at: float  # seconds since the epoch
    replica: str
    in_flight: int
    held: int
    pools: list[FleetPool]
    requests: list[RecentRunning | RecentEnded]


class SharedPrefix(TypedDict, closed=True):
    """A prefix that two prompts or more have in common, and longer ones that some of these have."""

    digest: str
    tokens: int
    prompts: int
    places: list[PlaceId] | None  # that have all of it; null: nobody tells it
    longer: list["SharedPrefix"]


class PrefixesOfPool(TypedDict, closed=True):
    pool: PoolId
    prompts: int
    block_size: int
    prefixes: list[SharedPrefix]


class SharedPrefixes(TypedDict, closed=True):
    pools: list[PrefixesOfPool]
