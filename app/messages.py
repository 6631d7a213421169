"""Everything that crosses a process, frozen, decoded once. msgpack arrays: fields only ever get added at the end.

api    → worker   Job     in `request:<id>.<attempt>`; the Celery task carries id and attempt only
api    → worker   WorkerCommand in `commands:<worker>`: what can't wait behind requests
api    → api      Look    in `commands:<api>`: what became of a request
worker → worker   Handoff from the prefill task to the decode task, by Celery's chain, as JSON
worker → api      EventBatch on `out:<api>`: all that one engine step made for this API replica
worker → all      Lease   in `worker:<id>`, each `heartbeat_s`; and WorkerMetrics in `metrics:<id>`
CLI    → api      ApiKey  in `keys:api`
api    → all      Adapter in `loras`: what is wanted; workers say in their leases what there is
api    → api      Kept    in `kept:<id>`; what comes of it in `log:<id>`, as lists of events
api    → api      StoredChat in `kept:<id>`, of a chat that was asked for with `store`

However long: a change of one of them has to be seen beside all of its readers.
"""

from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_args

import msgspec
from msgspec import Struct

from app.ids import ApiId, KeyId, PoolId, RequestId, RunId, WorkerId, run_id

WIRE_VERSION = 1  # of all that follows, of keys and of scripts: see `app/store/wire_version.py`

T = TypeVar("T")
FinishReason = Literal["stop", "length", "abort"]
Role = Literal["both", "prefill", "decode"]
Task = Literal["generate", "embed", "classify"]
StageKind = Literal["prefill", "decode", "encode"]


GrammarKind = Literal["json", "regex", "choice", "grammar", "tag"]
GRAMMAR_KINDS: tuple[GrammarKind, ...] = get_args(GrammarKind)


class Grammar(Struct, frozen=True, array_like=True):
    """What an answer has to be. `app/grammars/` compiles it."""

    kind: GrammarKind
    text: str  # a JSON schema; a regular expression; a JSON list of texts; EBNF or Lark; xgrammar's structural tag


class Sampling(Struct, frozen=True, array_like=True):
    """What the client asked of the engine, checked and with defaults filled in."""

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
    special_tokens: bool = False  # they are part of the text: a dialect's markers are some
    grammar: Grammar | None = None  # for workers that name its kind in `Worker.grammars`: others would ignore it


class Stage(Struct, frozen=True, array_like=True):
    """A part of a job, and the data-parallel rank of a worker that does it."""

    kind: StageKind
    pool: PoolId
    worker: WorkerId
    rank: int


class PartialOutput(Struct, frozen=True, array_like=True):
    """What is already out of one choice: the worker that goes on with it begins behind that."""

    tokens: list[int]
    text_len: int = 0  # characters
    finished: bool = False  # nothing of it is left to be done


class KvHandle(Struct, frozen=True, tag="lent"):
    """A handoff in sequence: the KV of a prompt, computed, and kept for the engine that decodes."""

    holder: str  # one life of the engine that keeps it
    expires: float  # by Redis' clock; from then on other KV may lie there
    tokens: int  # of the prompt
    params: dict[str, Any]  # in the engine's own words, JSON; nothing of prompt or answer


class Rendezvous(Struct, frozen=True, tag="room"):
    """A handoff at once: where both engines meet while the prompt is being computed."""

    host: str
    port: int
    room: int  # 63 bits, drawn for this request


Handoff = KvHandle | Rendezvous


class KvTransfer(Struct, frozen=True, array_like=True):
    """KV that came from another engine."""

    tokens: int
    size: int  # bytes
    seconds: float


class Timing(Struct, frozen=True, array_like=True):
    """One worker's part in a request; times in seconds since the epoch, by Redis' clock."""

    worker: WorkerId
    taken: float  # from its queue
    first: float  # its first token
    ended: float
    pulled: KvTransfer | None = None
    refused: str = ""  # why it computed the prompt itself, although another engine had


class Inputs(Struct, frozen=True, array_like=True):
    """Of a job that generates nothing: its prompt is several inputs, one behind the other, and each gets a vector."""

    lengths: list[int]  # tokens of each
    task: Task
    dimensions: int | None = None  # of each vector; None: as many as the model has


class Job(Struct, frozen=True, array_like=True):
    """One prompt to be completed, or several inputs to be encoded, so that any worker of the pool can take it."""

    request: RequestId
    attempt: int  # from 0; events of an older attempt are ignored
    reply_to: ApiId
    prompt: list[int]  # token ids
    sampling: Sampling
    deadline: float  # by Redis' clock (`store.clock`); only the API replica that awaits it looks at it
    priority: int = 0  # lower is sooner
    stages: list[Stage] = []  # one after the other, as they were placed; the last one answers. None: not placed yet
    cache_salt: str | None = None  # prompts of other salts share no KV with it
    begun: list[PartialOutput] = []  # of each choice, if anything is out of any
    cached_tokens: int = 0  # of the prompt, where a prefill stage computed the rest
    at_once: bool = False  # all stages have begun, and meet in a Rendezvous
    prefilled: Timing | None = None  # the prefill worker's part, once it is over
    aside: bool = False  # gives way to online requests
    whole: bool = False  # nobody reads along: what comes goes out in few pieces
    x_request_id: str = ""  # of the HTTP request, for logs and Flower: the client's own, or the answer's id
    inputs: Inputs | None = None  # None: it generates
    adapter: str | None = None  # `Adapter.versioned`; None: the model answers as it is

    @property
    def run(self) -> RunId:
        return run_id(self.request, self.attempt)

    @property
    def worker(self) -> WorkerId:
        """The one that answers; "": none yet."""
        return self.stages[-1].worker if self.stages else WorkerId("")

    def stage(self, kind: StageKind) -> Stage | None:
        return next((stage for stage in self.stages if stage.kind == kind), None)


class TokenLogprob(Struct, frozen=True, array_like=True):
    token: str
    token_id: int
    logprob: float
    top: list[tuple[str, int, float]] = []  # (token, id, logprob), likeliest first


class Delta(Struct, frozen=True, array_like=True, tag="d"):
    """What one step added to one choice of one request. Never the last event: Done or Failed follows."""

    request: RequestId
    attempt: int
    text: str
    tokens: list[int]
    index: int = 0  # of the n choices
    finish: FinishReason | None = None
    stop: int | str | None = None  # the stop token id or string that ended it
    logprobs: list[TokenLogprob] | None = None
    # With a choice's first delta when they were asked for; None for the first token, which nothing predicts.
    prompt_logprobs: list[TokenLogprob | None] | None = None


class FirstToken(Struct, frozen=True, array_like=True, tag="1"):
    """The first token of an answer that another worker goes on with. That one's deltas may come before it."""

    request: RequestId
    attempt: int
    delta: Delta
    begun: PartialOutput


class PrefillDone(Struct, frozen=True, array_like=True, tag="h"):
    """Prefill is over, and the request is with the worker that decodes."""

    request: RequestId
    attempt: int
    timing: Timing | None
    # …or with none, because that one is gone, full or leaving: place the request anew, with this.
    returned: KvHandle | None = None


class Vectors(Struct, frozen=True, array_like=True, tag="v"):
    """What the inputs of a job are encoded as, all of them. Never the last event: Done follows."""

    request: RequestId
    attempt: int
    data: bytes  # float32, little-endian: one vector behind the other, all of one length


class Done(Struct, frozen=True, array_like=True, tag="e"):
    """The terminal event of an answered request."""

    request: RequestId
    attempt: int
    cached_tokens: int = 0  # prompt tokens that nobody had to compute for it
    timings: list[Timing] = []  # of the worker that computed the prompt, if another one, and of the one that answered
    # Of a kept answer only, for a reader without its prompt:
    prompt_tokens: int = 0
    ended: float = 0.0  # seconds since the epoch


class Failed(Struct, frozen=True, array_like=True, tag="f"):
    """The terminal event of a request that won't be answered. `code` is one of `app/errors.py`."""

    request: RequestId
    attempt: int
    code: str
    message: str


Event = Delta | FirstToken | PrefillDone | Vectors | Done | Failed


class EventBatch(Struct, frozen=True, array_like=True):
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
        """As workers and engines know it: other weights never have the same."""
        return f"{self.name}@{self.version}"


class AdapterReport(Struct, frozen=True, array_like=True):
    """A worker's adapters, as far as they change from one moment to the next. All by `Adapter.versioned`."""

    failed: dict[str, str] = {}  # why it could not be loaded
    requests: dict[str, int] = {}  # that the worker has
    load_s: float = 0.0  # that it took to fetch and load one, on average; 0: none was


class Worker(Struct, frozen=True, array_like=True):
    """What a worker is, for as long as it lives."""

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
    kv_events: bool = False  # it tells what its caches hold
    block_bytes: int = 0  # of KV in a block
    meets_at: str = ""  # "host:port" where its prefills meet the engine that decodes; empty: it hands over in sequence
    grammars: list[GrammarKind] = []  # kinds that its engine obeys, also from their middle; none: not even known to it
    max_adapters: int = 0  # LoRA adapters that it holds at once
    adapters: list[str] = []  # `Adapter.versioned` of those that requests may come for


class Load(Struct, frozen=True, array_like=True):
    """What a worker's engine has at the moment, all its ranks together."""

    running: int = 0
    waiting: int = 0
    used_blocks: int = 0
    lent_blocks: int = 0  # of the used ones: kept for engines that decode
    aside: int = 0  # requests here that give way to others, running or waiting for that
    aside_most: int = 0  # so many of them each rank takes now


class Speeds(Struct, frozen=True, array_like=True):
    """How fast one data-parallel rank works, measured over the last minute. 0: nothing measured yet."""

    prefill_tokens_per_s: float = 0.0
    prefills_per_s: float = 0.0
    busy: float = 0.0  # share of the time in which a prefill ran
    request_s: float = 0.0  # how long a request holds its blocks
    pulled_bytes_per_s: float = 0.0  # KV from other engines


class Lease(Struct, frozen=True, array_like=True):
    """A worker lives, and how it is."""

    worker: Worker
    load: Load = Load()
    speeds: Speeds = Speeds()
    draining: bool = False  # it takes no more
    wire: int = WIRE_VERSION
    adapters: AdapterReport = AdapterReport()


class WorkerMetric(Struct, frozen=True, array_like=True):
    """A line of /metrics, with all that is to be said of it: an API replica shows also those that it doesn't know."""

    name: str
    kind: Literal["counter", "gauge"]
    meaning: str
    value: float


class Cancel(Struct, frozen=True, array_like=True, tag="c"):
    """The client has gone."""

    run: RunId


class ClearCache(Struct, frozen=True, array_like=True, tag="k"):
    """Forget all cached prefixes, and say in `reply:<id>` how that went."""

    id: str


class LoadAdapter(Struct, frozen=True, array_like=True, tag="a"):
    """The adapters that are wanted have changed; or requests wait for one of them."""

    adapter: str = ""  # `Adapter.versioned` of that one


WorkerCommand = Cancel | ClearCache | LoadAdapter


class Look(Struct, frozen=True, array_like=True):
    """To an API replica: what became of a request? It says so in `reply:<id>`, as JSON; nothing: it knows of none."""

    id: str
    request: RequestId
    key: KeyId | None  # only if it came with that API key; None: with any or none


class Reply(Struct, frozen=True, array_like=True):
    worker: WorkerId
    done: bool
    reason: str = ""


class Rate(Struct, frozen=True, array_like=True):
    """What may be done in a minute, over all processes."""

    account: str  # what is left of it is in `spent:<account>`
    requests: int = 0  # 0: no limit, here and below
    tokens: int = 0
    spared: float = 0.0  # share of a minute's worth that is left to others with the same account


class ApiKey(Struct, frozen=True, array_like=True):
    """Who may use the API. The key itself is known to its holder only."""

    name: str
    digest: bytes  # SHA-256 of the key
    created: float  # seconds since the epoch
    requests_per_min: int | None = None
    tokens_per_min: int | None = None
    id: KeyId = KeyId("")  # random; none of a key that an older version made
    file_quota: int | None = None  # bytes that its files may have; None: as the settings say, here and below
    min_priority: int | None = None  # the most urgent one that it may ask for
    batch_requests_per_min: int | None = None  # of its batches' lines, apart from the others; with neither of these
    batch_tokens_per_min: int | None = None  # lines draw on what the others have

    @property
    def owner(self) -> KeyId:
        """Whose all is that comes with it: nobody else is ever given the same, as could happen with a name."""
        return self.id or KeyId(self.name)

    @property
    def rate(self) -> Rate | None:
        return _rate(self.owner, self.requests_per_min, self.tokens_per_min)

    @property
    def batch_rate(self) -> Rate | None:
        """Lines that draw on the same as online requests leave these half of it, and don't wait for less."""
        if self.batch_requests_per_min is None and self.batch_tokens_per_min is None:
            return _rate(self.owner, self.requests_per_min, self.tokens_per_min, 0.5)
        return _rate(f"{self.owner}:batch", self.batch_requests_per_min, self.batch_tokens_per_min)


def _rate(account: str, requests: int | None, tokens: int | None, spared: float = 0.0) -> Rate | None:
    return Rate(account, requests or 0, tokens or 0, spared) if requests or tokens else None


class ResponseContext(Struct, frozen=True, array_like=True):
    """What a response's answer is read by, besides its request."""

    begun: bool = False  # its text begins inside reasoning
    earlier_calls: int = 0  # calls of tools in the conversation before
    history: bytes = b""  # JSON: the items before its own, as they were then
    conversation: str = ""  # that its items go to when it has ended


class StoredChat(Struct, frozen=True, array_like=True):
    """What a chat that is stored under its id is found by."""

    model: str
    metadata: dict[str, str] = {}


class KeptRequest(Struct, frozen=True, array_like=True):
    """A request whose answer outlives its connection: all that another API replica needs to go on with it."""

    id: RequestId
    kind: str  # which endpoint understands the body
    body: bytes  # JSON: what was understood of the client's
    created: float  # seconds since the epoch, by Redis' clock
    deadline: float
    key: KeyId = KeyId("")  # `ApiKey.owner` of the API key that it came with
    background: bool = False
    x_request_id: str = ""  # as Job's
    response: ResponseContext = ResponseContext()
    chat: StoredChat | None = None  # once it is whole, clients find it in the list of chats


encode = msgspec.msgpack.Encoder().encode


def decoder(kind: type[T]) -> Callable[[bytes], T]:
    """Of a message; it raises msgspec.DecodeError, and nothing else, whatever the bytes are."""
    decode = msgspec.msgpack.Decoder(kind).decode

    def read(raw: bytes) -> T:
        try:
            return decode(raw)
        except (UnicodeDecodeError, RecursionError) as exc:
            raise msgspec.DecodeError(str(exc)) from None

    return read


decode_job = decoder(Job)
decode_event_batch = decoder(EventBatch)
decode_lease = decoder(Lease)
decode_worker_metrics = decoder(list[WorkerMetric])
decode_worker_command: Callable[[bytes], WorkerCommand] = decoder(WorkerCommand)  # type: ignore[arg-type]  # a union is no type to mypy
decode_reply = decoder(Reply)
decode_look = decoder(Look)
decode_adapter = decoder(Adapter)
decode_api_key = decoder(ApiKey)
decode_kept = decoder(KeptRequest)
decode_stored_chat = decoder(StoredChat)
decode_events = decoder(list[Event])
