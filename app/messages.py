"""All messages between processes, frozen, decoded once. msgpack arrays: fields are only added at the end.

api    → worker   Job     in `request:<id>.<attempt>`; the Celery task carries id and attempt only
api    → worker   WorkerCommand in `commands:<worker>`: commands that can't wait behind requests
api    → api      Look    in `commands:<api>`: a question about a request
worker → worker   Handoff from the prefill task to the decode task, by Celery's chain, as JSON
worker → api      EventBatch on `out:<api>`: all that one engine step made for this API replica
api    → all      PoolState in `pool-state:<pool>`
worker → all      Lease   in `worker:<id>`, each `heartbeat_s`; and WorkerMetrics in `metrics:<id>`
worker → worker   Member  in `member:<id>`, of an engine that spans several hosts; its Group in `group:<id>`
CLI    → api      ApiKey  in `keys:api`
api    → all      Adapter in `loras`: the wanted adapters; the loaded ones are in the leases of workers
api    → worker   Prefix  in `prefixes:<pool>`: the wanted prefixes; what caches have of them is in the prefix index
api    → api      KeptRequest in `kept:<id>`; its answer in `log:<id>`, as lists of events
CLI    → api      Recording in `recording`; the requests that end meanwhile come as RecordedBatch in `recorded:<id>`
api    → api      StoredChat in `kept:<id>`, of a chat that was asked for with `store`

Those that come for every token or request are not tracked by the garbage collector (`gc=False`): they hold no cycles.

One file, however long: whoever changes a message has to see all others.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, get_args

import msgspec
from msgspec import Struct

from app.ids import ApiId, KeyId, PoolId, PrefixId, RequestId, RunId, TenantId, WorkerId, run_id

WIRE_VERSION = 2  # of all that follows, of keys and of scripts: see `app/store/wire_version.py`

T = TypeVar("T")
FinishReason = Literal["stop", "length", "abort"]
Role = Literal["both", "prefill", "decode", "encode"]
Task = Literal["generate", "embed", "classify", "image", "transcribe"]
MediaKind = Literal["image", "audio", "video", "embeds"]  # embeds: rows that a client computed, instead of tokens
# For people.
MEDIA_NAMES: Mapping[MediaKind, str] = {
    "image": "pictures", "audio": "sound", "video": "videos", "embeds": "prompt embeddings",
}  # fmt: skip
StageKind = Literal["prefill", "decode", "encode", "paint", "encode_pictures"]  # encode: makes vectors of texts
PictureFormat = Literal["png", "jpeg", "webp", "mp4"]


ExpertAction = Literal["start", "stop", "dump"]  # see `engines.base.ExpertRecorder`
PauseMode = Literal["abort", "wait", "keep"]  # what becomes of running requests: see `engines.base.Pauser`
PAUSE_MODES: tuple[PauseMode, ...] = get_args(PauseMode)
GrammarKind = Literal["json", "regex", "choice", "grammar", "tag"]
GRAMMAR_KINDS: tuple[GrammarKind, ...] = get_args(GrammarKind)

NODE_PORTS = 8  # consecutive ones, that the leader of an engine on several hosts listens on for the others
ASIDE_PRIORITY = 2**32  # added to the priority of aside requests: above any that a client may ask for


class Grammar(Struct, frozen=True, array_like=True):
    """A grammar that an answer has to match. `app/grammars/` compiles it."""

    kind: GrammarKind
    text: str  # a JSON schema; a regular expression; a JSON list of texts; EBNF or Lark; xgrammar's structural tag


class ContentRules(Struct, frozen=True, array_like=True):
    """Rules that tell the content from the rest of an answer's text."""

    dialect: str | None  # its name
    reasoning: tuple[str, str] | None = None  # the markers of reasoning, if they aren't the dialect's
    tools: tuple[str, ...] = ()  # names of those that may be called
    begun: bool = False  # the text begins within reasoning
    over: bool = False  # or behind it


class Sampling(Struct, frozen=True, array_like=True):
    """The client's parameters for the engine, checked and with defaults filled in."""

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False  # the stop string stays in the text
    ignore_eos: bool = False
    n: int = 1
    logprobs: int | None = None  # how many alternatives per token; None: no logprobs at all
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] | None = None
    special_tokens: bool = False  # the text includes them: many dialects' markers are special tokens
    grammar: Grammar | None = None  # for workers with its kind in `Worker.grammars`: others would ignore it
    content: ContentRules | None = None  # of the text, in which `stop` counts; None: in all of it


class Stage(Struct, frozen=True, array_like=True, gc=False):
    """A part of a job, and the data-parallel rank of a worker that does it."""

    kind: StageKind
    pool: PoolId
    worker: WorkerId
    rank: int
    media: tuple[int, ...] = ()  # of `encode_pictures`: numbers of the job's media that it encodes


class PartialOutput(Struct, frozen=True, array_like=True):
    """The output that one choice has sent so far: the next worker continues after it."""

    tokens: list[int]
    text_len: int = 0  # characters
    finished: bool = False  # the choice is complete


class KvHandle(Struct, frozen=True, tag="lent"):
    """A handoff in sequence: the prefill engine has computed a prompt's KV, and keeps it for the decode engine."""

    holder: str  # the engine that keeps it; a restarted one has another id
    expires: float  # s since the epoch, by Redis' clock; from then on other KV may overwrite it
    tokens: int  # of the prompt
    params: dict[str, Any]  # the engine's own, as JSON; nothing of prompt or answer
    weights: str = ""  # the version that computed it


class Rendezvous(Struct, frozen=True, tag="room"):
    """A handoff at once: where both engines connect while the prompt is being computed."""

    host: str
    port: int
    room: int  # 63 bits, drawn for this request


Handoff = KvHandle | Rendezvous


class EmbeddingHandle(Struct, frozen=True, array_like=True):
    """An encoded picture in the memory of the worker that encoded it. Another one may have its place by now."""

    worker: WorkerId
    agent: str  # the NIXL agent of its memory, another one for each start
    metadata: bytes  # by which that is reached
    pages: list[int]  # addresses, in order
    page_bytes: int
    rows: int
    width: int
    dtype: str  # as torch names it, such as float32
    checksum: int  # CRC-32 of the bytes
    weights: str = ""  # the version that encoded it


class KvTransfer(Struct, frozen=True, array_like=True):
    """KV that came from another engine."""

    tokens: int
    size: int  # bytes
    seconds: float


class Timing(Struct, frozen=True, array_like=True, gc=False):
    """One worker's part in a request; times in seconds since the epoch, by Redis' clock."""

    worker: WorkerId
    taken: float  # from its queue
    first: float  # its first token
    ended: float
    pulled: KvTransfer | None = None
    refused: str = ""  # why it computed the prompt itself although another engine had done so
    cost_s: float = 0.0  # of each second, its share among all requests on the engine


class Inputs(Struct, frozen=True, array_like=True):
    """The inputs of a job that generates nothing: concatenated, they are its prompt, and each gets a vector."""

    lengths: list[int]  # tokens of each
    task: Task
    dimensions: int | None = None  # of each vector; None: as many as the model has


class Frame(Struct, frozen=True, array_like=True):
    """A picture's place in a video."""

    number: int  # of those that were taken, from 0
    of: int  # so many
    at_s: float  # from the video's beginning
    long_s: float  # the whole video


class Media(Struct, frozen=True, array_like=True):
    """A picture, a sound, a video or an embedding in a prompt. Its samples are in `media:<sha256>`."""

    kind: MediaKind
    sha256: str  # hexadecimal, of kind, shape and samples: the same picture by URL, data or file is one
    # Of a picture: height and width, RGB uint8; of sound: samples, float32 mono, 16 kHz; of an embedding: rows, width.
    # Of a video that is written as one: frames, height, width, and tenths of a second that they are of.
    shape: tuple[int, ...]
    offset: int = 0  # of its placeholders in the prompt, tokens
    length: int = 0  # tokens of placeholders; in a job to transcribe, of the encoder's own prompt
    frame: Frame | None = None  # None: it is no frame of a video
    dtype: str = ""  # of an embedding: float32, float16 or bfloat16, little-endian


class Painting(Struct, frozen=True, array_like=True):
    """One picture or video to be painted. A worker that paints it again makes the same bytes."""

    prompt: str
    width: int  # pixels
    height: int
    steps: int  # of denoising
    seed: int  # 32 bits
    guidance: float | None = None  # how closely it follows the prompt; None: as the model has it
    negative: str = ""  # what it shall not show
    format: PictureFormat = "png"
    quality: int = 100  # percent, of jpeg and webp
    previews: int = 0  # pictures of unfinished states, sent on the way
    frames: int = 0  # of a video; 0: it is a picture
    fps: int = 0
    strength: float | None = None  # how far an edit goes from its picture: above 0, to 1; None: it is no edit
    masked: bool = False  # the last of an edit's media is a mask, as large as the first: only what is white is edited

    @property
    def work(self) -> int:
        """The cost in units that stand for a text's tokens in routing: steps of 32×32 pixels of a frame."""
        return self.steps * max(1, self.frames) * max(1, self.width * self.height // 1024)


class TracePlace(Struct, frozen=True, array_like=True):
    """A request's place in a trace, as W3C has it; ids are hexadecimal."""

    trace: str  # 32 digits: the client's, or a new one
    span: str  # 16 digits: the request's own
    parent: str = ""  # the client's span; "": it has none
    sampled: bool = False

    @property
    def traceparent(self) -> str:
        """W3C's header, for what is done within the request's span."""
        return f"00-{self.trace}-{self.span}-{'01' if self.sampled else '00'}"


def log_names(x_request_id: str, trace_id: str) -> dict[str, str]:
    """The fields of log lines about a request; `trace_id` only where there is one."""
    return {"x_request_id": x_request_id, "trace_id": trace_id} if trace_id else {"x_request_id": x_request_id}


class Job(Struct, frozen=True, array_like=True):
    """One prompt to be completed, inputs to be encoded, or a picture: all that a worker of the pool needs for it."""

    request: RequestId
    attempt: int  # from 0; events of an older attempt are ignored
    reply_to: ApiId
    prompt: list[int]  # token ids
    sampling: Sampling
    deadline: float  # s since the epoch, by Redis' clock (`store.clock`); only the API replica that awaits it checks it
    priority: int = 0  # lower is sooner
    stages: list[Stage] = []  # in their order; the last one answers. Empty: not placed yet
    cache_salt: str | None = None  # prompts with another salt share no KV with it
    begun: list[PartialOutput] = []  # of each choice; empty if nothing has been sent
    cached_tokens: int = 0  # of the prompt, where a prefill stage computed the rest
    at_once: bool = False  # all stages have begun, and meet in a Rendezvous
    prefilled: Timing | None = None  # the prefill worker's part, once it is over
    aside: bool = False  # gives way to online requests
    whole: bool = False  # nobody reads it as a stream: output is sent in few pieces
    x_request_id: str = ""  # of the HTTP request, for logs and Flower: the client's own, or the answer's id
    inputs: Inputs | None = None  # None: it generates
    session: str | None = None  # that the client says it belongs to
    adapter: str | None = None  # `Adapter.versioned`; None: the model's own weights
    weights: str | None = None  # the version that its workers must have; None: any
    token_redis: int = 0  # where its events go: of XYLEM_TOKEN_REDIS_URLS, from 1; 0: the Redis of all else
    media: list[Media] = []  # in the prompt, by offset; for workers with their kinds in `Worker.media`
    painting: Painting | None = None  # its prompt is empty then
    # W3C's header, with this attempt's span as the parent of what an engine traces; "": the API replica doesn't trace.
    traceparent: str = ""
    behind: bool = False  # its tenant had its share when it was placed: behind others of its priority, on the engine
    turn: str = ""  # `Client.turn`, where a worker's clients wait in turns: if it has a grammar
    # Its prompt as the template wrote it, which the engine expands to `prompt`; empty: each medium is one token there.
    written: list[int] = []

    @property
    def names(self) -> dict[str, str]:
        """The fields that all its log lines have."""
        return log_names(self.x_request_id, self.traceparent[3:35])

    @property
    def trace_headers(self) -> dict[str, str] | None:
        """Headers for an engine that traces requests itself."""
        return {"traceparent": self.traceparent} if self.traceparent else None

    @property
    def kind(self) -> StageKind:
        """The stage that answers."""
        if self.painting is not None:
            return "paint"
        return "decode" if self.inputs is None else "encode"

    @property
    def work(self) -> int:
        """Tokens that an engine computes before its first output, or what stands for them."""
        return self.painting.work if self.painting is not None else len(self.prompt)

    @property
    def run(self) -> RunId:
        return run_id(self.request, self.attempt)

    @property
    def encoder_tokens(self) -> int:
        """Tokens of sound that an encoder computes beside the prompt: nothing in the prompt stands for them."""
        return sum(one.length for one in self.media if one.offset + one.length > len(self.prompt))

    @property
    def worker(self) -> WorkerId:
        """The worker that answers; "": none yet."""
        return self.stages[-1].worker if self.stages else WorkerId("")

    def stage(self, kind: StageKind) -> Stage | None:
        return next((stage for stage in self.stages if stage.kind == kind), None)

    def stage_of(self, worker: WorkerId) -> Stage:
        """The worker's stage; the last one if it has none."""
        return next((stage for stage in self.stages if stage.worker == worker), self.stages[-1])


class TokenLogprob(Struct, frozen=True, array_like=True):
    token: str
    token_id: int
    logprob: float
    top: list[tuple[str, int, float]] = []  # (token, id, logprob), likeliest first
    rank: int = 0  # among all tokens, from 1 on; 0: not known


class Delta(Struct, frozen=True, array_like=True, tag="d", gc=False):
    """Output that one step added to one choice of one request. Never the last event: Done or Failed follows."""

    request: RequestId
    attempt: int
    text: str
    tokens: list[int]
    index: int = 0  # of the n choices
    finish: FinishReason | None = None
    stop: int | str | None = None  # the stop token id or string that ended it
    logprobs: list[TokenLogprob] | None = None
    # If asked for, in a choice's first delta; None for the first token, which nothing predicts.
    prompt_logprobs: list[TokenLogprob | None] | None = None
    weights: str = ""  # the version that made it; "": the pool's own


class FirstToken(Struct, frozen=True, array_like=True, tag="1"):
    """The first token of an answer that another worker continues. The other worker's deltas may arrive first."""

    request: RequestId
    attempt: int
    delta: Delta
    begun: PartialOutput


class PrefillDone(Struct, frozen=True, array_like=True, tag="h"):
    """Prefill is over, and the request is with the worker that decodes."""

    request: RequestId
    attempt: int
    timing: Timing | None
    # The decode worker is gone, full or draining: the request is to be placed anew, with this KV.
    returned: KvHandle | None = None


class PicturesEncoded(Struct, frozen=True, array_like=True, tag="m"):
    """All pictures that were to be encoded apart are, or are left to the next worker, which has the request."""

    request: RequestId
    attempt: int


class Vectors(Struct, frozen=True, array_like=True, tag="v"):
    """The vectors of all inputs of a job. Never the last event: Done follows."""

    request: RequestId
    attempt: int
    data: bytes  # float32, little-endian: the vectors, concatenated, all of one length


class Progress(Struct, frozen=True, array_like=True, tag="p"):
    """A step of a painting is over. Never the last event."""

    request: RequestId
    attempt: int
    step: int  # how many are over
    of: int
    picture: bytes = b""  # the unfinished picture, if one was asked for here


class Painted(Struct, frozen=True, array_like=True, tag="i"):
    """A piece of a picture's or video's file, in order, and short: tokens wait behind it. Done follows."""

    request: RequestId
    attempt: int
    start: int  # its first byte; 0: earlier pieces are of a former try
    data: bytes


class Done(Struct, frozen=True, array_like=True, tag="e", gc=False):
    """The terminal event of an answered request."""

    request: RequestId
    attempt: int
    cached_tokens: int = 0  # prompt tokens that did not have to be computed
    timings: list[Timing] = []  # of the prefill worker, if there was one, and of the worker that answered
    # Only of kept answers, for readers without the prompt:
    prompt_tokens: int = 0
    ended: float = 0.0  # seconds since the epoch
    expanded: list[int] = []  # the prompt as the engine has it, if it expands media to other tokens than the job says


class Failed(Struct, frozen=True, array_like=True, tag="f"):
    """The terminal event of a request that won't be answered. `code` is one of `app/errors.py`."""

    request: RequestId
    attempt: int
    code: str
    message: str
    param: str | None = None  # the request's parameter that is at fault; GRAMMAR: the one that asks for its grammar


GRAMMAR = "grammar"
Event = Delta | FirstToken | PrefillDone | PicturesEncoded | Vectors | Progress | Painted | Done | Failed


class EventBatch(Struct, frozen=True, array_like=True, gc=False):
    worker: WorkerId
    seq: int  # from 1, +1 for each message from this worker to this API
    events: list[Event]


class Adapter(Struct, frozen=True, array_like=True):
    """A LoRA adapter that the deployment is to serve."""

    name: str  # by which clients ask for it, as for a model
    version: int  # another one for each that is added or swapped in, never given twice
    model: str  # that it is made for
    source: str  # a path, or `s3://…`, `http://…`, `https://…`
    sha256: str = ""  # hexadecimal; of what, `app/adapters/fetch.py` says
    pools: list[PoolId] = []  # that load it; none: all of the model
    min_workers: int = 1  # of each pool, that have it in any case
    created: float = 0.0  # seconds since the epoch

    @property
    def versioned(self) -> str:
        """The name by which workers and engines know it: other weights never have the same."""
        return f"{self.name}@{self.version}"


class AdapterReport(Struct, frozen=True, array_like=True):
    """A worker's adapters, as far as they change from one moment to the next. All by `Adapter.versioned`."""

    failed: dict[str, str] = {}  # why it could not be loaded
    requests: dict[str, int] = {}  # that the worker has
    load_s: float = 0.0  # that it took to fetch and load one, on average; 0: none was


class Prefix(Struct, frozen=True, array_like=True):
    """The beginning of prompts, that workers of a pool are to have in their caches. It never changes."""

    id: PrefixId
    model: str  # as requests name it
    tokens: list[int]
    created: float  # s since the epoch, by Redis' clock, as the next one
    until: float  # from then on it is evicted as any other
    copies: int | None = None  # how many workers of the pool have it; None: all
    cache_salt: str | None = None  # as of the requests that find it
    adapter: str | None = None  # its name: whichever version is answered with
    once: bool = False  # it is computed, and not kept
    dropped: bool = False  # its blocks are to leave the pool's store


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


# Of a picture's sides, where an engine tells what it becomes: many a processor first scales the shorter side to some
# hundred pixels, at the picture's proportions.
MOST_RATIO = 100
TENTHS = 10  # of a second, in which a video's length is told: as exactly as engines write times


def is_drawable(kind: MediaKind, shape: tuple[int, ...]) -> bool:
    """Whether a medium of this shape, as in `Media`, may be asked about as far as its proportions say it."""
    sides = {"image": shape, "video": shape[1:3]}.get(kind, (1,))
    return max(sides) <= MOST_RATIO * min(sides)


class MediaSign(Struct, frozen=True, array_like=True):
    """An engine's way to write media of one kind in a prompt, where nobody else knows it."""

    kind: MediaKind
    digest: str  # of all that decides what a medium becomes: engines of the same one expand alike
    marker: str  # of one medium, for chat templates that take texts
    target: tuple[int, ...]  # tokens of it, that the engine replaces; none: it puts all behind `first`
    # Pairs of adjacent tokens, and what the engine writes instead: one after the other, everywhere in such a prompt.
    joins: tuple[tuple[int, int, int], ...] = ()
    numbered: bool = False  # what stands for one depends on how many are before it, too
    most: int = 0  # tokens that one may become
    counted: bool = False  # what stands for one depends on how many the prompt has, too
    first: tuple[int, ...] = ()  # tokens with which prompts begin, if it has no target
    alone: bool = False  # a prompt may have only one


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


TierUse = Literal["all", "host", "none"]  # from which tiers an engine loads KV; `host`: not from the store


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


class Member(Struct, frozen=True, array_like=True):
    """A process of an engine that spans several hosts."""

    worker: WorkerId
    address: str  # where the others reach it
    port: int  # the first of `NODE_PORTS` that were free there: if it leads, the others meet it at these
    ready: bool = False  # it leads, and its engine answers
    leaving: bool = False  # it was told to end
    ended: bool = False  # it leads, and all its requests are over
    weights: str = ""  # the version that the engine has, if it leads
    caches: list[int] = []  # as in its leader's Lease: of the ranks on its host
    block_size: int = 0  # tokens in a KV block of the engine, if it leads and is ready
    groups: list[CacheGroup] = []  # the same of these: as in `EngineInfo`
    unindexed: str = ""  # the same: as in `Worker`


class Group(Struct, frozen=True, array_like=True):
    """The processes of one engine. It never changes: without one of them, all end, and a new one is formed."""

    epoch: int  # higher than those of all earlier groups of the pool
    members: list[Member]  # by their node's rank, as they were then; the first one leads


class WorkerMetric(Struct, frozen=True, array_like=True):
    """A line of /metrics and its description: API replicas show metrics that they don't know, too."""

    name: str
    kind: Literal["counter", "gauge"]
    meaning: str
    value: float


class Cancel(Struct, frozen=True, array_like=True, tag="c"):
    """Stop this run: nobody awaits it any more."""

    run: RunId


class ClearCache(Struct, frozen=True, array_like=True, tag="k"):
    """Forget all cached prefixes, and report in `reply:<id>`."""

    id: str


class LoadAdapter(Struct, frozen=True, array_like=True, tag="a"):
    """The adapters that are wanted have changed; or requests wait for one of them."""

    adapter: str = ""  # `Adapter.versioned` of that one


class ExpandMedia(Struct, frozen=True, array_like=True, tag="e"):
    """Tell in `reply:<id>` what stands in a prompt for a medium of this shape."""

    id: str
    kind: MediaKind
    shape: tuple[int, ...]  # as in `Media`
    number: int = 0  # how many of the kind are before it
    of: int = 1  # how many of the kind the prompt has, if that matters


class LookAtPrefixes(Struct, frozen=True, array_like=True, tag="l"):
    """The pool's prefixes have changed."""


class Sleep(Struct, frozen=True, array_like=True, tag="s"):
    """Leave routing and sleep. Reported in `reply:<id>`, as all that follow."""

    id: str
    level: int
    mode: PauseMode


class Wake(Struct, frozen=True, array_like=True, tag="w"):
    """Wake up, and come back to routing after one token."""

    id: str
    tags: list[str] = []  # what to wake only; empty: all


class Pause(Struct, frozen=True, array_like=True, tag="p"):
    """Leave routing and stop computing."""

    id: str
    mode: PauseMode


class Resume(Struct, frozen=True, array_like=True, tag="r"):
    """Go on computing, and come back to routing."""

    id: str


class WeightsSource(Struct, frozen=True):
    """A source of weights: a folder, or a transfer group, in which a trainer sends them."""

    path: str = ""
    init: dict[str, Any] | None = None  # what the engine needs to join the group; None: it has joined
    update: dict[str, Any] | None = None  # what it needs to receive one update; None: from the path


class SetWeights(Struct, frozen=True, array_like=True, tag="u"):
    """Leave routing, take other weights, and come back."""

    id: str
    version: str
    source: WeightsSource | None  # None: the pool's own
    mode: PauseMode  # for running requests; one that is paused stays as it is


class Profile(Struct, frozen=True, array_like=True, tag="f"):
    """Start or stop the engine's profiler."""

    id: str
    on: bool
    name: str = ""


class RecordExperts(Struct, frozen=True, array_like=True, tag="x"):
    """Start or stop the record of how tokens are spread over the model's experts, or write it down."""

    id: str
    action: ExpertAction


class Scale(Struct, frozen=True, array_like=True, tag="n"):
    """Leave routing, have another number of data-parallel ranks, and come back."""

    id: str
    ranks: int


StateCommand = Sleep | Wake | Pause | Resume | SetWeights | Profile | RecordExperts | Scale
WorkerCommand = Cancel | ClearCache | ExpandMedia | LoadAdapter | LookAtPrefixes | StateCommand


class PoolState(Struct, frozen=True):
    """The state that operators want a pool's workers to have; those that start later take it over."""

    sleep: int = 0  # the level; 0: awake
    tags: list[str] = []  # what of them is awake all the same
    keep_awake: int = 0  # how many don't sleep
    paused: PauseMode | None = None
    weights: str = ""  # the version; "": the pool's own
    source: WeightsSource | None = None


class Look(Struct, frozen=True, array_like=True):
    """Asks an API replica about a request. It answers in `reply:<id>`, as JSON; empty: it doesn't know the request."""

    id: str
    request: RequestId
    key: KeyId | None  # only if the request came with that API key; None: with any or none


class Reply(Struct, frozen=True, array_like=True):
    worker: WorkerId
    done: bool
    reason: str = ""
    expansion: list[int] = []  # token ids: what `ExpandMedia` asks for
    refused: bool = False  # what was asked for can't be, by any worker


class ResponseContext(Struct, frozen=True, array_like=True):
    """The context that is needed to read a response's answer, besides its request."""

    begun: bool = False  # its text begins inside reasoning
    earlier_calls: int = 0  # tool calls in the conversation before
    history: bytes = b""  # JSON: the items before its own, as they were then
    conversation: str = ""  # the conversation that gets its items when it has ended
    over: bool = False  # its text begins behind reasoning


class StoredChat(Struct, frozen=True, array_like=True):
    """The fields by which stored chats are found."""

    model: str
    metadata: dict[str, str] = {}


class KeptRequest(Struct, frozen=True, array_like=True):
    """A request whose answer outlives its connection: all that another API replica needs to continue it."""

    id: RequestId
    kind: str  # `Endpoint.kind`, which parses the body
    body: bytes  # JSON: the client's request, as it was parsed
    created: float  # seconds since the epoch, by Redis' clock
    deadline: float
    key: KeyId = KeyId("")  # `ApiKey.owner` of the API key that it came with
    background: bool = False
    x_request_id: str = ""  # as Job's
    response: ResponseContext = ResponseContext()
    chat: StoredChat | None = None  # once it is whole, clients find it in the list of chats
    media: list[Media] = []  # of its parts, in their order: what was at a URL when the request came
    trace: TracePlace | None = None
    tenant: TenantId = TenantId("default")

    @property
    def names(self) -> dict[str, str]:
        """The fields that all its log lines have."""
        return log_names(self.x_request_id, self.trace.trace if self.trace else "")


class Recording(Struct, frozen=True, array_like=True):
    """A request of `xylem record` to API replicas, for the requests that come in a span of time."""

    id: str
    secret: bytes  # the key of all digests; gone with the recording
    since: float  # seconds since the epoch, by Redis' clock
    until: float
    model: str = ""  # "": all


class Recorded(Struct, frozen=True, array_like=True):
    """A prompt that was answered: times and lengths, no text."""

    request: str
    came: float  # seconds since the epoch, by Redis' clock
    prompt: int  # tokens
    answers: list[int]  # tokens of each choice
    blocks: bytes  # 8 bytes for each block of the trace: a digest of it and all before it
    session: bytes = b""  # a digest; empty: none


class RecordedBatch(Struct, frozen=True, array_like=True):
    api: ApiId
    records: list[Recorded]
    total: int  # of its records so far, with those that were dropped
    unanswered: int  # its requests so far that ended without a token
    running: int  # its requests that may still come: they run, or are in the next message
    at: float  # when it counted them, seconds since the epoch, by Redis' clock


encode = msgspec.msgpack.Encoder().encode


def decoder(kind: type[T]) -> Callable[[bytes], T]:
    """A decoder of such messages. It raises msgspec.DecodeError only, whatever the bytes are."""
    decode = msgspec.msgpack.Decoder(kind).decode

    def read(raw: bytes) -> T:
        try:
            return decode(raw)
        except (UnicodeDecodeError, RecursionError) as exc:
            raise msgspec.DecodeError(str(exc)) from None

    return read


decode_grammar = decoder(Grammar)
decode_job = decoder(Job)
decode_event_batch = decoder(EventBatch)
decode_lease = decoder(Lease)
decode_member = decoder(Member)
decode_group = decoder(Group)
decode_embedding = decoder(EmbeddingHandle)
decode_worker_metrics = decoder(list[WorkerMetric])
decode_worker_command: Callable[[bytes], WorkerCommand] = decoder(WorkerCommand)  # type: ignore[arg-type]  # a union is no type to mypy
decode_reply = decoder(Reply)
decode_runs = decoder(list[int])
decode_pool_state = decoder(PoolState)
decode_look = decoder(Look)
decode_adapter = decoder(Adapter)
decode_prefix = decoder(Prefix)
decode_kept = decoder(KeptRequest)
decode_stored_chat = decoder(StoredChat)
decode_recording = decoder(Recording)
decode_recorded = decoder(RecordedBatch)
decode_events = decoder(list[Event])
