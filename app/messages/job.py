"""`Job`, from an API replica to a worker, in `request:<id>.<attempt>`: the Celery task carries id and attempt only."""

from msgspec import Struct

from app.ids import ApiId, PoolId, RequestId, RunId, WorkerId, run_id
from app.messages.handoff import Rendezvous
from app.messages.held import HeldSamples
from app.messages.kinds import EarlyStopping, GrammarKind, PictureFormat, StageKind, Task
from app.messages.media import Media
from app.messages.trace import log_names
from app.messages.wire import decoder

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


class BeamSearch(Struct, frozen=True, array_like=True):
    """A search for the likeliest answers, of which none is drawn."""

    width: int  # beams that go on at each step; at least as many as there are choices
    length_penalty: float = 1.0  # above 0 longer answers are better
    early_stopping: EarlyStopping = False


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
    beams: BeamSearch | None = None  # for workers with `Worker.beams`: others would ignore it

    @property
    def seats(self) -> int:
        """Number of answers that an engine makes for it at once."""
        return self.n if self.beams is None else self.beams.width


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
    at_once: bool = False  # all stages have begun, but for encoded pictures, and meet in a Rendezvous
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
    held: HeldSamples | None = None  # of its media, those that its API replica holds; all others are in Redis
    meets: Rendezvous | None = None  # of two stages that begin at once when its pictures are encoded

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


decode_grammar = decoder(Grammar)
decode_job = decoder(Job)
