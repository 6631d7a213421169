"""The interface of an engine: one small protocol, without torch."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from app.ids import RunId
from app.messages.events import TokenLogprob
from app.messages.handoff import Handoff, KvHandle
from app.messages.job import KvTransfer, PartialOutput, Sampling
from app.messages.kinds import ExpertAction, FinishReason, GrammarKind, PauseMode, Task, TierUse
from app.messages.lease import CacheGroup
from app.messages.media import Media, MediaKind, MediaSign
from app.messages.wanted import WeightsSource


class EngineInfo(Struct, frozen=True):
    """A loaded engine's capacity and abilities."""

    block_size: int  # tokens in a KV block
    total_blocks: int
    max_running: int  # requests batched at once
    max_model_len: int  # tokens, prompt and answer together
    ranks: int = 1  # data-parallel ranks; the numbers above, except max_model_len, are for each of them
    block_bytes: int = 0  # of KV in a block, over all layers; 0: it can't hand KV over
    meets_at: str = ""  # "host:port" where its prefills meet the decode engine; empty: it hands over in sequence
    grammars: tuple[GrammarKind, ...] = ()  # kinds that it supports, also for answers begun elsewhere
    seeds: bool = True  # the same seed gives the same answer; else it refuses seeds
    computes: bool = True  # prompts, with the role decode; else it takes their KV only, through a Rendezvous
    max_adapters: int = 0  # LoRA adapters that it holds at once; 0: it takes none
    max_adapter_rank: int = 0
    version: str = ""  # the engine's own, for people
    media: tuple[MediaKind, ...] = ()  # kinds that it takes in prompts, besides those of `signs`
    embeddings: "EmbeddingShape | None" = None  # of encoded pictures that it takes; None: it encodes them itself
    tier_block_bytes: int = 0  # of KV in a block, where it has tiers and tells what they hold
    peers: bool = False  # with the role both, it computes prompts for engines like it, and takes KV from them
    # Of its KV blocks, where layers of several kinds keep them differently; none: all tokens see all before them.
    groups: tuple[CacheGroup, ...] = ()
    unindexed: str = ""  # why its KV events can't be placed in the prefix index
    # The module of a process that compiles grammars with the engine's library, on trial; "": none is needed.
    grammar_compiler: str = ""
    signs: tuple[MediaSign, ...] = ()  # of kinds about which it can be asked, as a `MediaExpander`
    logprobs: bool = True  # it tells the logprobs of an answer's tokens; else it refuses to


class Node(Struct, frozen=True):
    """A host's part in an engine that spans several."""

    rank: int  # 0 leads
    address: str  # where the others reach this one
    leader: str  # the leader's address
    port: int  # the first of `messages.NODE_PORTS` on which the leader listens for the others


class EngineStats(Struct, frozen=True):
    running: int = 0
    waiting: int = 0
    used_blocks: int = 0  # held by requests; cached blocks that no request holds are free
    prefill_tokens: int = 0  # prompt tokens computed since the start, without cached and pulled ones
    pulled_tokens: int = 0  # prompt tokens whose KV came from other engines, since the start
    lent_blocks: int = 0  # of the used ones: kept for decode engines
    # A step that computes no prompt takes step_s + running · request_step_s. The latter is 0 while unknown.
    step_s: float = 0.0
    request_step_s: float = 0.0
    # Speculation since the start: how often tokens were drafted, how many, and of these how many were accepted at
    # each position of a draft.
    drafts: int = 0
    drafted_tokens: int = 0
    accepted_tokens: tuple[int, ...] = ()
    host_bytes_per_s: float = 0.0  # at which KV came from host memory lately; 0: none came
    store_bytes_per_s: float = 0.0  # the same, from the store
    paint_steps: int = 0  # of denoising, computed since the start; a batch's step counts once for each picture


EventKey = tuple[str, int]  # a sample's hash, and its offset from the block's start


class KvEventSource(Struct, frozen=True):
    """A source of KV events: where the engine publishes them, in the format of vLLM's ZmqEventPublisher."""

    endpoint: str  # SUB connects here
    replay_endpoint: str  # DEALER connects here
    topic: str
    # What those keys of blocks stand for that the engine makes itself; None: for nothing but the tokens. It grows.
    own_keys: Mapping[bytes, EventKey | None] = {}
    # Of an engine that has numbers of its own for the tokens of a picture: by these, the placeholder's token and the
    # picture's SHA-256. It grows.
    pictures: Mapping[int, tuple[int, str]] = {}


class EmbeddingShape(Struct, frozen=True):
    """The format that all encoded pictures have in common."""

    width: int  # numbers in a row
    dtype: str  # as torch names it, such as float32
    token: int | None = None  # of its placeholders, the one that stands for a row; None: each does


class Embedding(Struct, frozen=True):
    """An encoded picture: rows × width numbers, row by row."""

    rows: int
    width: int
    dtype: str
    data: bytes


class MediaInput(Struct, frozen=True):
    """A picture, a sound or an embedding, with its samples as `media.shape` says."""

    media: Media
    data: bytes | bytearray
    embedding: Embedding | None = None  # of a picture; checked to be as `EngineInfo.embeddings` says


class GenerateRequest(Struct, frozen=True):
    id: RunId
    prompt: list[int]  # token ids, at least one
    sampling: Sampling
    priority: int = 0  # lower is sooner
    rank: int = 0  # the data-parallel rank to run on
    cache_salt: str | None = None  # only prompts of the same salt share KV
    # `generate`: where the prompt's KV comes from; `prefill`: the Rendezvous through which it is moved. Never with
    # prompt_logprobs, which only the engine that computes the prompt has.
    handoff: Handoff | None = None
    # The output of each choice so far, if any: the engine continues it. Its sampling state is restored as far as the
    # engine can; the mock restores all of it.
    begun: list[PartialOutput] = []
    session: str | None = None  # requests of one session should meet the same cache
    adapter: str | None = None  # the name of an added one; None: the model's own weights
    media: list[MediaInput] = []  # in the prompt, by offset; only of kinds in `EngineInfo.media`
    tiers: TierUse = "all"  # only where `EngineInfo.tier_block_bytes` is not 0
    trace_headers: Mapping[str, str] | None = None  # W3C's, for an engine that traces requests itself
    written: list[int] = []  # as in `Job`


class StepOutput(Struct, frozen=True):
    """The output that one engine step added to one choice."""

    text: str  # may be empty: an incomplete character, or text held back for a stop string
    tokens: list[int]
    index: int = 0
    finish: FinishReason | None = None
    stop: int | str | None = None  # the stop token id or stop string that ended this choice
    logprobs: list[TokenLogprob] | None = None  # one per token
    cached_tokens: int = 0  # prompt tokens found in the prefix cache
    prompt_logprobs: list[TokenLogprob | None] | None = None  # with each choice's first output
    pulled: KvTransfer | None = None  # with the first output
    expanded: list[int] = []  # with the first output: the engine's own prompt, if it has media and is another


class Engine(Protocol):
    """One model, loaded. All methods run on the event loop that called `start`."""

    async def start(self) -> EngineInfo:
        """Load until the first request can be served. Raises: EngineFailed, SettingsError (bad arguments)."""

    def generate(self, request: GenerateRequest) -> AsyncGenerator[StepOutput, None]:
        """Yield until every choice has had a `finish`. Closing the iterator aborts the request.

        Raises: RequestError (the engine refuses the parameters), EngineFailed; HandoffFailed, before the first
        output, when the KV of `request.handoff` can't be fetched: the caller can try again without it.
        """

    async def abort(self, request: RunId) -> None:
        """End the request: its `generate` yields `finish="abort"` or stops, its KV blocks become free.

        An unknown request is ignored.
        """

    def stats(self) -> EngineStats: ...

    def kv_events(self) -> Mapping[int, KvEventSource]:
        """Sources of the KV events, by data-parallel rank; empty when the engine publishes none."""

    async def close(self) -> None:
        """Free everything. Requests in flight end with `finish="abort"` or EngineFailed."""


class Follower(Protocol):
    """The part of an engine that spans several hosts on one that does not lead. On the loop that called `start`."""

    async def start(self, on_death: Callable[[], None]) -> None:
        """Load with the others. `on_death` is called, from any thread, when it ends by itself afterwards.

        Raises: EngineFailed, SettingsError (bad arguments).
        """

    def kv_events(self) -> Mapping[int, KvEventSource]:
        """Sources of the KV events of the data-parallel ranks on this host, as the engine's."""

    async def close(self) -> None:
        """Free everything."""


class Prefilled(Struct, frozen=True):
    # The first token of an answer with one choice, as from `generate`; with `finish` if it is the last.
    # None if the decode engine has to make it: for several choices, with a Rendezvous, or for a model with states.
    output: StepOutput | None
    # None: the answer is complete, or the KV was moved through the Rendezvous. With a complete answer, discard it.
    handoff: KvHandle | None
    cached_tokens: int = 0  # prompt tokens found in the prefix cache


@runtime_checkable
class Disaggregated(Protocol):
    """The capability to compute prompts for other engines, and to decode prompts that others have computed."""

    async def prefill(self, request: GenerateRequest) -> Prefilled:
        """Compute the prompt and keep its KV, or move it through the Rendezvous. Cancelling aborts and frees.

        Raises: RequestError, EngineFailed; HandoffFailed when the decode engine did not come to the Rendezvous.
        """

    async def discard(self, handoff: KvHandle) -> None:
        """Tell the holder, another engine, to free the KV. A holder that is gone is ignored."""


@runtime_checkable
class PrefixResetter(Protocol):
    """The capability to forget cached prefixes."""

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, and nothing done, while a request holds blocks."""


class EncodeRequest(Struct, frozen=True):
    id: RunId
    inputs: list[list[int]]  # token ids of each, at least one
    task: Task  # the pool's
    dimensions: int | None = None  # None: as many as the model has
    priority: int = 0  # lower is sooner
    rank: int = 0  # the data-parallel rank to run on
    trace_headers: Mapping[str, str] | None = None  # as GenerateRequest's


@runtime_checkable
class Encoder(Protocol):
    """The capability to make vectors of texts: embeddings, or probabilities of classes. Pictures: `PictureEncoder`."""

    async def encode(self, request: EncodeRequest) -> bytes:
        """The vectors of all inputs, concatenated: float32, little-endian. Cancelling aborts and frees.

        Raises: RequestError, PromptTooLong, EngineFailed.
        """


class PictureRequest(Struct, frozen=True):
    """A picture to be encoded."""

    id: RunId
    picture: MediaInput
    placeholders: list[int]  # token ids, `picture.media.length`; empty: nobody has counted them
    trace_headers: Mapping[str, str] | None = None  # as GenerateRequest's


@runtime_checkable
class PictureEncoder(Protocol):
    """The capability to encode pictures for other engines of the model. With the role encode it does nothing else."""

    async def encode_picture(self, request: PictureRequest) -> Embedding:
        """Cancelling aborts and frees. Raises: RequestError, EngineFailed."""


@runtime_checkable
class MediaExpander(Protocol):
    """The capability to tell what a medium becomes in a prompt, without having it. `EngineInfo.signs` says which."""

    async def expansion(self, kind: MediaKind, shape: Sequence[int], number: int, of: int) -> list[int]:
        """Token ids. `shape`: as in `Media`. `number`: how many of the kind are before it. `of`: how many there are.

        Raises: RequestError for a shape that the model can't take.
        """


@runtime_checkable
class Transcriber(Protocol):
    """The capability to write down speech, of pools whose task that is.

    Each request of such a pool has one sound of at most half a minute, which the engine's encoder takes, and the tokens
    with which the decoder begins.
    """

    transcribes: bool  # always True: a protocol needs a member


def silence() -> MediaInput:
    """A second of sound in which nothing is heard, for requests that only prove that an engine lives."""
    samples = 16_000
    return MediaInput(Media("audio", "silence", (samples,)), bytes(4 * samples))


@runtime_checkable
class Adapters(Protocol):
    """The capability to answer with LoRA adapters. A request for one that was not added is AdapterFailed."""

    async def add_adapter(self, name: str, path: Path) -> None:
        """Load it from a folder, which stays as it is until it is removed. A name is never given to other weights.

        Raises: AdapterFailed, and nothing has changed then.
        """

    async def remove_adapter(self, name: str) -> None:
        """No request has it, and none comes for it any more. One that is not there is ignored."""


@runtime_checkable
class Pauser(Protocol):
    """The capability to stop computing and go on later. The model stays loaded."""

    async def pause(self, mode: PauseMode) -> None:
        """Returns when nothing is computed any more. New requests then wait in the engine.

        `abort` ends running requests with `finish="abort"`, `wait` lets them end, `keep` stops them where they are.
        Pausing a paused engine is allowed. Raises: EngineFailed.
        """

    async def resume(self) -> None:
        """Go on, also with the requests that `keep` has stopped. Raises: EngineFailed."""


@runtime_checkable
class Sleeper(Protocol):
    """The capability to give the accelerator's memory to others. A sleeping engine refuses requests."""

    async def sleep(self, level: int, mode: PauseMode) -> None:
        """Pause, and free memory. Level 1 keeps the weights in the host's memory, level 2 drops them, too.

        Raises: RequestError (it can't, by its arguments), EngineFailed; then the engine may be paused.
        """

    async def wake(self, tags: Sequence[str] = ()) -> bool:
        """Take the memory back: all of it, or what `tags` name (`weights`, `kv_cache`). Whether it is awake now.

        After level 2 the weights have to be loaded again before a request can be answered. Raises: RequestError
        (unknown tags), EngineFailed.
        """

    async def is_sleeping(self) -> bool: ...


@runtime_checkable
class Weights(Protocol):
    """The capability to change the model's weights. Only for paused engines."""

    async def update_weights(self, version: str, source: WeightsSource | None) -> None:
        """Load weights and forget all KV, also of stopped requests, whose tokens are then computed again.

        `source`: None means the weights that it was started with. Raises: RequestError (a source that this engine
        doesn't take), EngineFailed; after either the weights may be unusable.
        """


@runtime_checkable
class Metered(Protocol):
    """The capability to keep Prometheus metrics of its own, which costs CPU."""

    def keep_metrics(self) -> None:
        """Keeps metrics, in prometheus_client's registry or in PROMETHEUS_MULTIPROC_DIR. Called before `start`."""


@runtime_checkable
class Profiler(Protocol):
    """The capability to record what it computes."""

    async def start_profile(self, name: str = "") -> None:
        """Raises: RequestError when it can't, by its arguments, or does already."""

    async def stop_profile(self) -> None:
        """Writes the record where the engine's arguments say. Raises: RequestError when none was started."""


@runtime_checkable
class ExpertRecorder(Protocol):
    """The capability to record how tokens are spread over the experts of its model."""

    async def record_experts(self, action: ExpertAction) -> None:
        """`dump` writes where its arguments say, and forgets. Raises: RequestError (it can't), EngineFailed."""


@runtime_checkable
class Elastic(Protocol):
    """The capability to change the number of its data-parallel ranks."""

    async def scale(self, ranks: int) -> EngineInfo:
        """Changes the number of ranks, and returns what the engine is then. Only while it has no requests.

        Raises: RequestError (it can't), EngineFailed.
        """


@runtime_checkable
class Prober(Protocol):
    """The capability to compute alone also in roles that need another engine. Without it, `generate` does."""

    async def probe(self, request: GenerateRequest) -> None:
        """Compute the prompt, and tokens if the role makes some, for nobody. Raises: RequestError, EngineFailed."""


@runtime_checkable
class Configured(Protocol):
    """The capability to tell what the engine itself is given, after all defaults and merging."""

    def configuration(self) -> Mapping[str, Any]:
        """Its arguments and environment, by name. Before `start`."""
