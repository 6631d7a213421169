"""Answers about the deployment: models, adapters, prefixes, targets to scrape."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NotRequired

from typing_extensions import TypedDict

from app.ids import CellId, PoolId, WorkerId
from app.messages.lease import EngineState
from app.messages.wanted import PoolState
from app.pools.schema import Alias
from app.routing.candidates import PlaceLimits
from app.schemas.answers import as_struct
from app.tenants.erasures import Kind

OF_PREFILL = frozenset({"remote_tokens", "remote_wait_s"})  # limits that only pools of role prefill have


class ScrapeTarget(TypedDict, closed=True):
    """A target in Prometheus' HTTP service discovery."""

    targets: list[str]  # "host:port"
    labels: dict[str, str]


class Capabilities(TypedDict, closed=True):
    chat: bool
    tools: bool
    reasoning: bool
    pictures: bool  # in its prompts, as its live workers say
    videos: bool  # the same
    sound: bool  # the same


class EngineAbilities(TypedDict, closed=True):
    kv_events: bool
    kv_transfer: bool
    grammars: list[str]  # kinds that it enforces
    ranks: int  # data-parallel ranks of a worker
    seeds: bool  # the same seed gives the same answer
    adapters: int  # LoRA adapters that a worker holds at once


class ServedBy(TypedDict, closed=True):
    pool: str
    engine: str
    versions: list[str]  # of its live workers' engines
    workers: int  # live ones
    task: str
    role: str
    endpoints: Sequence[str] | None  # null: all that fit its task
    capabilities: EngineAbilities


class ModelPrice(TypedDict, closed=True):
    """Money for a million tokens, and for one picture; `xylem tenants prices` sets it."""

    input: float
    cached_input: float | None  # null: as `input`
    output: float
    image: float


class ModelCard(TypedDict, closed=True):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int  # tokens
    dialect: str | None  # how it writes reasoning and tool calls
    capabilities: Capabilities
    task: str  # as in the pools file: generate, embed, classify, image, transcribe
    sampling_defaults: dict[str, float]  # of the model's generation_config.json, where a request says nothing
    parent: str | None  # of a LoRA adapter: the model that it is made for
    chat_template_kwargs: NotRequired[list[str]]  # the variables that its template knows; not in the list of models
    reasoning_efforts: NotRequired[Sequence[str]]  # that its template tells apart; not in the list of models
    alias: NotRequired[Alias]  # what the name stands for, if it is no model's own
    pipeline: NotRequired[list[str]]  # the models of its stages, if the name is a pipeline's
    pools: NotRequired[list[ServedBy]]  # not in the list of models
    price: NotRequired[ModelPrice | None]  # null: it has none; not in the list of models


class AdapterCard(TypedDict, closed=True):
    name: str
    version: int
    model: str  # that it is made for
    source: str
    sha256: str
    pools: list[str]  # that load it; none: all of the model
    min_workers: int
    created: float
    workers: Sequence[str]  # that answer with this version
    failed: Mapping[WorkerId, str]  # by worker: why it could not load it
    missing: Mapping[
        PoolId, int
    ]  # by pool: how many fewer than `min_workers` have it, which don't live there, or failed


class AdapterList(TypedDict, closed=True):
    data: list[AdapterCard]


class Removed(TypedDict, closed=True):
    name: str
    removed: bool


class PrefixInPool(TypedDict, closed=True):
    blocks: int  # that it fills
    places: int | None  # caches that have all of it; null: the engines don't tell
    wanted: int  # caches that are to have it


class PrefixCard(TypedDict, closed=True):
    id: str
    model: str
    tokens: int
    until: float | None  # s since the epoch; null: it was computed once
    copies: int | None  # how many workers of each pool have it; null: all
    warm: bool | None  # whether all caches that are to have it have it; null: no engine tells
    pools: Mapping[PoolId, PrefixInPool]


class PrefixList(TypedDict, closed=True):
    data: list[PrefixCard]


class PrefixDropped(TypedDict, closed=True):
    id: str
    dropped: bool


class ModelList(TypedDict, closed=True):
    object: Literal["list"]
    data: list[ModelCard]


class CellStanding(TypedDict, closed=True):
    reachable: bool
    requests: int  # of this process


class Readiness(TypedDict, closed=True):
    ready: bool
    redis: bool
    subscribed: bool  # tokens can be received
    workers: dict[str, int]  # live ones, by model
    cells: NotRequired[Mapping[CellId, CellStanding]]  # where there are several


class CachesCleared(TypedDict, closed=True):
    cleared: list[WorkerId]
    refused: dict[WorkerId, str]  # and why


class ErasureCard(TypedDict, closed=True):
    object: Literal["erasure"]
    kind: Kind
    name: str
    status: Literal["running", "done", "failed"]
    reason: str | None  # why it is not carried out any more
    began: float
    removed: dict[str, int]  # what, and how many so far
    kv_blocks: dict[PoolId, int | None]  # of stores that workers share; null: not all hosts have told it yet
    kv_not_cleared: dict[str, str]  # workers that have not, and why


class ErasureList(TypedDict, closed=True):
    object: Literal["list"]
    data: list[ErasureCard]


class Isolation(TypedDict, closed=True):
    object: Literal["tenant"]
    name: str
    isolated: bool


PoolLimits = Annotated[dict[str, Any], as_struct(PlaceLimits, optional=OF_PREFILL)]
WorkerStanding = Annotated[dict[str, Any], as_struct(EngineState, takes_requests=bool)]


class _PoolStanding(TypedDict):
    wanted: Annotated[dict[str, Any], as_struct(PoolState)]
    workers: dict[WorkerId, WorkerStanding]


class PoolStanding(_PoolStanding, closed=True):
    pass


class PoolChanged(_PoolStanding, closed=True):
    done: list[WorkerId]
    refused: dict[WorkerId, str]  # and why


class Live(TypedDict, closed=True):
    status: Literal["ok"]


class Version(TypedDict, closed=True):
    version: str


class Addresses(TypedDict, closed=True):
    """Paths on this host."""

    api: str
    models: str
    docs: str
    openapi: str
    ready: str
    console: NotRequired[str]
