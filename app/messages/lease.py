"""`Lease`, from a worker to all, in `worker:<id>`, each `heartbeat_s`; and `WorkerMetric` in `metrics:<id>`."""

from typing import Literal

from msgspec import Struct

from app.ids import PoolId, WorkerId
from app.messages.kinds import GrammarKind, PauseMode, Role
from app.messages.media import MediaKind, MediaSign
from app.messages.wire import WIRE_VERSION, decoder


class AdapterReport(Struct, frozen=True, array_like=True):
    """A worker's adapters, as far as they change from one moment to the next. All by `Adapter.versioned`."""

    failed: dict[str, str] = {}  # why it could not be loaded
    requests: dict[str, int] = {}  # that the worker has
    load_s: float = 0.0  # that it took to fetch and load one, on average; 0: none was


class CacheGroup(Struct, frozen=True, array_like=True):
    """Layers of a model whose KV blocks an engine keeps and removes together."""

    number: int  # as its KV events name it
    # Of a token: all tokens before it, the last ones, those of its chunk; or a state that stands for all before it.
    sees: Literal["all", "window", "chunk", "state"]
    block_size: int  # tokens
    width: int = 0  # tokens of a window, with the one that sees; or of a chunk
    every: int = 0  # of windows: tokens from one point of a prompt at which they are kept to the next; 0: at its end


class Grid(Struct, frozen=True, array_like=True):
    """Lengths in tokens by which the prompts of a worker's engine are hashed: see `app/kv/groups.py`."""

    block_size: int  # of a block that has a hash
    step: int  # between two points at which a prompt may resume in its cache; a multiple of the other
    everywhere: bool = True  # it may wherever a block is cached; else only where the engine kept what all layers need


class Worker(Struct, frozen=True, array_like=True):
    """A worker's properties: they never change."""

    id: WorkerId
    pool: PoolId
    role: Role
    host: str
    pid: int
    block_size: int  # tokens in a KV block
    total_blocks: int  # KV blocks the engine has
    max_running: int  # requests the engine takes at once
    max_model_len: int  # tokens
    ranks: int = 1  # data-parallel ranks; blocks, max_running and speeds are each one's
    kv_events: bool = False  # it reports what its caches hold
    block_bytes: int = 0  # of KV in a block
    meets_at: str = ""  # "host:port" where decode engines connect to its prefills; empty: it hands over in sequence
    grammars: list[GrammarKind] = []  # kinds that its engine enforces, also when it continues an answer
    seeds: bool = True  # its engine gives the same answer for the same seed; else it refuses seeds
    computes: bool = True  # prompts; else it decodes only what a prefill worker computes meanwhile
    max_adapters: int = 0  # LoRA adapters that it holds at once
    adapters: list[str] = []  # `Adapter.versioned` of those that requests may use
    engine: str = ""  # as the pools file names it; empty from a worker of an older version, here and below
    engine_version: str = ""
    model: str = ""  # as its pools file names it
    media: list[MediaKind] = []  # kinds that its engine takes in prompts, besides those of `signs`
    embeddings: bool = False  # its engine takes encoded pictures
    tier_block_bytes: int = 0  # of KV in a block that a tier behind the engine's cache has; 0: it has none
    peers: bool = False  # it computes prompts for other workers of its pool, and takes KV from them
    prefixes: bool = False  # it keeps those of its pool in its cache
    metrics_at: str = ""  # "host:port" of its own /live, /ready and /metrics; empty: it has no port
    start_s: float = 0.0  # from its process's start until it took requests
    grid: Grid | None = None  # None from a worker of an older version: each block
    unindexed: str = ""  # why nobody knows what its caches hold, where that can't be helped
    # Tokens between the points that a prompt leaves in its cache, at which others may resume; 0: it leaves the one at
    # its end. Where `grid` says everywhere, it leaves all.
    leaves: int = 0
    signs: list[MediaSign] = []  # of kinds about which its engine can be asked
    collects: bool = False  # it collects large samples from who awaits their request; else it reads all in Redis
    beams: bool = False  # it searches answers with beams

    @property
    def takes(self) -> set[MediaKind]:
        """Kinds that its engine takes in prompts. Older versions know no videos: so these are in `signs` only."""
        return {*self.media, *(sign.kind for sign in self.signs)}


class Load(Struct, frozen=True, array_like=True):
    """The present load of a worker's engine, all its ranks together."""

    running: int = 0
    waiting: int = 0
    used_blocks: int = 0
    lent_blocks: int = 0  # of the used ones: kept for engines that decode
    aside: int = 0  # aside requests here, running or waiting at the gate
    aside_most: int = 0  # how many of them each rank takes now


class Speeds(Struct, frozen=True, array_like=True):
    """Speeds of one data-parallel rank, measured over the last minute. 0: nothing measured yet."""

    prefill_tokens_per_s: float = 0.0
    prefills_per_s: float = 0.0
    busy: float = 0.0  # share of the time in which a prefill ran
    request_s: float = 0.0  # how long a request holds its blocks
    pulled_bytes_per_s: float = 0.0  # KV from other engines
    host_bytes_per_s: float = 0.0  # KV from the tier in host memory
    store_bytes_per_s: float = 0.0  # KV from the store behind it
    reused_tokens_per_s: float = 0.0  # prompt tokens that its cache saved
    step_s: float = 0.0  # a step that computes no prompt takes this and, for each request in it, `request_step_s`
    request_step_s: float = 0.0


class EngineState(Struct, frozen=True, array_like=True):
    """The state into which operators have brought a worker's engine."""

    weights: str = ""  # the version; "": the pool's own
    asleep: int = 0  # the level; 0: awake
    paused: PauseMode | None = None
    changing: bool = False  # it is on its way from one state to another


class Lease(Struct, frozen=True, array_like=True):
    """Says that a worker lives, and describes it."""

    worker: Worker
    load: Load = Load()
    speeds: Speeds = Speeds()
    draining: bool = False  # it takes no requests: it ends, sleeps, is paused, or gets other weights
    wire: int = WIRE_VERSION
    adapters: AdapterReport = AdapterReport()
    state: EngineState = EngineState()
    # Of each rank, the number of its KV cache in the prefix index; none: it reports no KV events.
    caches: list[int] = []
    token_redis: int = 0  # how many XYLEM_TOKEN_REDIS_URLS it knows
    broker_apart: bool = False  # its messages come through XYLEM_BROKER_URL
    hosts: list[int] = []  # as `caches`, of the tiers in host memory
    store: int = 0  # the same of the store that its ranks share with other workers; 0: none
    left_out: bool = False  # most of what its KV events tell can't be placed in the prefix index
    # As `caches`, where prompts resume at points only: of the blocks that the layers which see everything hold.
    beginnings: list[int] = []


class WorkerMetric(Struct, frozen=True, array_like=True):
    """A line of /metrics and its description: API replicas show metrics that they don't know, too."""

    name: str
    kind: Literal["counter", "gauge"]
    meaning: str
    value: float


decode_lease = decoder(Lease)
decode_worker_metrics = decoder(list[WorkerMetric])
