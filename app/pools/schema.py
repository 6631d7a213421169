"""The pools file's schema: which workers there are, and how requests are shared among them. `pools_file.py` reads it.

Above 300 lines, since the keys' comments are what the reference shows.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from app.dialects.names import dialect_names, find_dialect, nearest
from app.endpoints import EndpointName
from app.errors import SettingsError
from app.ids import PoolId
from app.messages.kinds import Role, Task
from app.model_store.source import ModelSource, RemoteModel
from app.pools.engine_registry import engine_names, is_engine
from app.tokenizing.tokenizer import TokenizerMode

Count = Annotated[int, Field(gt=0)]
NotNegative = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(gt=0, le=2, allow_inf_nan=False)]  # of blocks; reservations may exceed 1
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
AliasName = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\s\x00-\x1f]+$")]
WorkloadKind = Literal["Deployment", "StatefulSet", "LeaderWorkerSet"]
Policy = Literal["kv", "least_loaded", "round_robin", "random", "power_of_two"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Routing(_Part):
    """Rules by which a worker is chosen; `app/routing/README.md` has the formulas."""

    policy: Policy = "kv"  # `kv`: by KV cache and load; the others are for comparison
    # Weight of the delay that a prefill causes for other requests, against the request's own time to first token.
    prefill_weight: Annotated[float, Field(ge=0, le=100)] = 1.0
    temperature: Annotated[float, Field(ge=0, le=100)] = 0.0  # 0: the best; above: softmax over relative costs
    affinity_s: Seconds = 2.0  # a session keeps its worker until another is cheaper by so many seconds
    # How long a prompt is assumed to stay cached in an engine that reports no KV events.
    predicted_ttl_s: Annotated[float, Field(gt=0, le=86_400)] = 120.0


class Busy(_Part):
    """Above these a worker gets no more requests. All but `max_held` may be changed at run time."""

    max_queued: NotNegative | None = None  # requests beyond max_running; XYLEM_MAX_QUEUED if not given
    active_blocks: Share | None = None  # share of its KV blocks that requests hold
    queued_tokens: Count | None = None  # prompt tokens that wait for their prefill
    # New requests that one API replica holds when all workers are above these; then 429. Accepted ones always wait.
    max_held: NotNegative = 1024


class Disagg(_Part):
    """Limits that decide when a pool of role `prefill` is used. Each may be changed at run time."""

    # Prompts with fewer uncached tokens are computed by the worker that answers: ops/bench/RESULTS.md says why so many.
    remote_tokens: NotNegative = 128
    # Seconds that its queue may last; null: as long as it costs all requests together less than prefilling elsewhere.
    remote_wait_s: Seconds | None = None


class Aside(_Part):
    """Limits on how much aside requests may slow down the others on the same engine."""

    # Share by which they may lengthen a step; 0: they run only where no other request runs.
    step_share: Annotated[float, Field(ge=0, le=1)] = 0.03
    # Share of the time, and of the steps, for their prompts while other requests run; more where the prompts of these
    # take much of the time.
    prefill_share: Annotated[float, Field(ge=0, le=1)] = 0.01


class Tiers(_Part):
    """Places for KV that the engine's own cache has no room for, and from which it is loaded instead of computed."""

    host_gb: Annotated[float, Field(gt=0, le=10_000)]  # of the host's memory, for each data-parallel rank of a worker
    # A folder, or a bucket such as `s3://bucket/kv`, behind the host's memory: it outlives workers.
    disk: Annotated[str, Field(min_length=1)] | None = None
    disk_gb: Annotated[float, Field(gt=0)] | None = None  # of `disk`, all models together; null: it may grow
    # Seconds between two looks at all that is in `disk`, which bound it and find what others have removed. In a bucket
    # each is a request for each thousand blocks.
    disk_look_s: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 60.0
    shared: bool | None = None  # whether other hosts have the same `disk`; null: a bucket is shared, a folder isn't
    key_file: Path | None = None  # 32 random bytes, with which `disk` is encrypted

    @property
    def is_shared(self) -> bool:
        return "://" in (self.disk or "") if self.shared is None else self.shared

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for key in ("disk_gb", "shared", "key_file"):
            if self.disk is None and getattr(self, key) is not None:
                raise ValueError(f"{key}: it is of `disk`, and there is none")
        return self


def parse_size(text: str) -> tuple[int, int]:
    """Width and height of a size such as 1024x768, in pixels. Raises: ValueError."""
    width, x, height = text.partition("x")
    if not (x and all(side.isascii() and side.isdigit() and len(side) < 6 for side in (width, height))):
        raise ValueError("has to be <width>x<height>, in pixels")
    return int(width), int(height)


def _size(text: str) -> str:
    parse_size(text)
    return text


Size = Annotated[str, AfterValidator(_size)]


class Scale(_Part):
    """Bounds of the number of workers that the planner may have in a pool."""

    least: NotNegative = 1  # workers that the pool has, however idle it is
    most: Count  # workers that the pool has, however much there is to do
    gpus: NotNegative = 1  # of one worker, for the budget `planner.gpus`
    # For `xylem planner --scaler ssh`: how many workers there are at most on each host, by what `ssh` calls it.
    hosts: dict[Annotated[str, Field(pattern=r"^[^\s-]\S*$")], Count] = {}
    # For `--scaler kubernetes`: what the pool's workers are there.
    kind: WorkloadKind = "Deployment"

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.least > self.most:
            raise ValueError(f"least is {self.least}, and most is {self.most}")
        if self.hosts and sum(self.hosts.values()) < self.most:
            raise ValueError(f"hosts have room for {sum(self.hosts.values())} workers, and most is {self.most}")
        return self


Quality = Literal["low", "medium", "high", "standard", "hd"]


class PaintRules(_Part):
    """Limits of what clients may ask of a model that paints, and what they get without asking."""

    size: Size = "1024x1024"  # of pictures and videos, if a request names none, or `auto`
    sizes: list[Size] | None = None  # the sizes that requests may name; null: any up to `max_pixels`
    multiple_of: Count = 16  # of pixels, that both sides have to be
    max_pixels: Count = 4 * 2**20  # of a picture, or a frame
    steps: Count = 30  # of denoising, if a request says nothing
    max_steps: Count = 100  # that a request may ask for
    # Steps of OpenAI's `quality`, as `{low: 10, high: 50}`. A value that is not here changes nothing; a header says so.
    quality_steps: dict[Quality, Count] = {}
    guidance: Annotated[float, Field(ge=0, le=100)] | None = None  # null: as the model has it
    fps: Annotated[int, Field(gt=0, le=120)] = 16  # of videos
    seconds: Annotated[float, Field(gt=0, le=600)] = 4.0  # of a video, if a request says nothing
    max_seconds: Annotated[float, Field(gt=0, le=600)] = 12.0  # that a request may ask for
    videos: bool = False  # whether the model makes videos, and no pictures


class Reasoning(_Part):
    """The markers around a model's reasoning, which chats show as `reasoning_content`."""

    begin: Annotated[str, Field(min_length=1)] = "<think>"  # before the reasoning
    end: Annotated[str, Field(min_length=1)] = "</think>"  # after it
    begun: bool = False  # the chat template ends with `begin`, so that answers begin with reasoning


NO_DIALECT = "none"
_GENERATION = "generation_config.json"
MOCK_DIMENSIONS = 384  # of an embedding of the mock engine, if its args say nothing
_MULTILINGUAL_VOCABULARY = 51_865  # Whisper's, of which the English one has a token less
_INPUT_LENGTH = "sentence_bert_config.json"  # where embedding models say how long an input may be
_INSTRUCTIONS = "config_sentence_transformers.json"  # and what they want in front of it


def _dialect(name: str) -> str:
    if name != NO_DIALECT and find_dialect(name) is None:
        names = ", ".join([NO_DIALECT, *dialect_names()])
        near = f"; {hint}" if (hint := nearest(name)) else ""
        raise PydanticCustomError("unknown_dialect", "is none of {names}{near}", {"names": names, "near": near})
    return name


def _sleep_level(level: int) -> int:
    if level not in (1, 2):
        raise PydanticCustomError(
            "sleep_level",
            "is none of 1 (weights stay in the host's memory) and 2 (they don't): no engine has another one",
        )
    return level


SleepLevel = Annotated[int, AfterValidator(_sleep_level)]


def _engine(name: str) -> str:
    if not (is_engine(name) or is_engine(name, paints=True)):
        names = ", ".join(sorted({*engine_names(), *engine_names(paints=True)}))
        raise PydanticCustomError("unknown_engine", "is none of {names}", {"names": names})
    return name


class Pool(_Part):
    """A named set of identical workers."""

    model: Annotated[str, Field(min_length=1)]  # the name clients ask for
    # `vllm`, `sglang`, `trtllm`, `omni` (vLLM-Omni), `diffusers` (for `task: image`), `mock` (a simulator: no GPU, no
    # weights), or an adapter of your own: app/pools/engine_registry.py.
    engine: Annotated[str, AfterValidator(_engine)]
    # Hugging Face directory: tokenizer, template, weights; mock has its own. `hf://organisation/name@revision` or
    # `s3://bucket/folder` is fetched once, into XYLEM_MODEL_STORE.
    path: ModelSource | None = None
    # embed: makes vectors of texts; classify: assigns texts to classes; image: paints pictures or videos; transcribe:
    # writes down speech (Whisper). None of them answers chats.
    task: Task = "generate"
    # prefill: computes prompts for workers of role decode. encode: encodes pictures for all others of the model.
    role: Role = "both"
    # A worker of role `both` may take the KV of a prompt from another one of the pool instead of computing it. vLLM and
    # the mock can.
    peers: bool = False
    # Whether it takes pictures that others have encoded. null: if the file has a pool of role encode for its model.
    embeddings: bool | None = None
    # Whether /v1/completions takes `prompt_embeds`: a prompt as rows of numbers instead of tokens, one for each. vLLM,
    # SGLang and the mock can.
    prompt_embeds: bool = False
    block_size: Count = 32  # tokens in a KV block
    max_running: Count = 64  # requests that the engine runs at once
    max_model_len: Count | None = None  # tokens; the model's own when not given
    data_parallel_size: Count = 1  # ranks in one worker, each with a KV cache of its own
    # Devices that compute each rank together. null: as `args` says. vLLM and SGLang can.
    tensor_parallel_size: Count | None = None
    # Hosts that one engine spans; each runs the same `celery -A app worker -Q <pool>`. Their number divides that of the
    # devices. vLLM, SGLang and the mock can.
    nodes: Count = 1
    chat_template: Path | None = None  # a Jinja file instead of the model's own
    # `file`: the model's tokenizer.json. `engine`: what vLLM, SGLang and TensorRT-LLM load with transformers, such as a
    # vocab.txt or tokenizer.model; API replicas and batch workers then need that package, too.
    tokenizer_mode: TokenizerMode = "file"
    reasoning: Reasoning | None = None  # null: as the dialect has it
    # How the model writes reasoning and tool calls: one of our names, or that of a parser of vLLM's or SGLang's. null:
    # guessed from the chat template; `none`: all text is content. `reasoning` replaces the dialect's own markers.
    dialect: Annotated[str, AfterValidator(_dialect)] | None = None
    # The field of reasoning in a chat's messages and deltas: `reasoning` is vLLM's name for it.
    reasoning_field: Literal["reasoning_content", "reasoning"] = "reasoning_content"
    # `auto`: the model's generation_config.json has the defaults of temperature, top_p, top_k, min_p, the penalties and
    # the length of a chat's answer. `none`: it is not read. Its end-of-answer token ids are left to the engine (vLLM
    # uses them).
    generation_config: Literal["auto", "none"] = "auto"
    routing: Routing = Routing()
    busy: Busy = Busy()
    disagg: Disagg = Disagg()
    aside: Aside = Aside()
    tiers: Tiers | None = None  # of pools that generate: memory and storage behind the engine's own KV cache
    scale: Scale | None = None  # null: the planner leaves the pool as it is
    painting: PaintRules = PaintRules()  # of pools of task `image`
    # How a worker sleeps if nobody says: 1 keeps its weights in the host's memory, 2 drops them and loads them anew.
    sleep_level: SleepLevel = 1
    wake_on_request: bool = False  # a request wakes a sleeping worker if none is awake, or all that are awake are full
    # The engine's own: fields of vLLM's AsyncEngineArgs, of TensorRT-LLM's LLM, or the mock's.
    args: dict[str, Any] = {}
    # A YAML file of more such arguments, read by workers, and by API replicas that have it, to know whether the engine
    # drafts from prompts. Those of `args` go before them, key by key at every depth.
    args_file: Path | None = None
    # Whether a worker of role `prefill`, or of task `transcribe`, computes more than a token before it is ready.
    warm_up: bool = True
    # The endpoints that may use the model; null: all that fit its task. All pools of a model have the same.
    endpoints: Annotated[list[EndpointName], Field(min_length=1)] | None = None

    @cached_property
    def model_dir(self) -> Path:
        """Raises: SettingsError while the model is not fetched: `fetched_pools` does that."""
        if isinstance(self.path, RemoteModel):
            raise SettingsError(f"path={self.path}: it is not fetched")
        if self.path is not None:
            return self.path
        return Path(__file__).parents[1] / "engines" / "mock" / "model"

    @cached_property
    def context_len(self) -> int:
        """Tokens that prompt and answer may have together, or an input that is encoded.

        Raises: SettingsError when the model's config.json can't be read.
        """
        if self.max_model_len is not None:
            return self.max_model_len
        if self.task == "image":
            return 0
        try:
            config = self._read("config.json")
            if self.task == "transcribe" and "max_target_positions" in config:  # Whisper's name for it
                return int(config["max_target_positions"])
            # A model that sees has its language part's settings apart.
            longest = int({**config.get("text_config", {}), **config}["max_position_embeddings"])
            if self.task != "generate" and (self.model_dir / _INPUT_LENGTH).exists():
                return min(longest, int(self._read(_INPUT_LENGTH)["max_seq_length"] or longest))
        except (KeyError, TypeError, ValueError) as exc:
            raise SettingsError(f"path={self.model_dir}: no readable config.json there (no length: {exc!r})") from exc
        return longest

    @cached_property
    def hidden_size(self) -> int:
        """Numbers in a token's row. Raises: SettingsError, as above."""
        config = self._read("config.json")
        size = {**config, **config.get("text_config", {})}.get("hidden_size")
        if not isinstance(size, int) or size <= 0:
            raise SettingsError(f"path={self.model_dir}: its config.json has no hidden_size")
        return size

    @cached_property
    def is_multilingual(self) -> bool:
        """Whether a model that transcribes knows other languages than English. Raises: SettingsError, as above."""
        if (self.model_dir / _GENERATION).exists() and "is_multilingual" in (config := self._read(_GENERATION)):
            return bool(config["is_multilingual"])
        return int(self._read("config.json").get("vocab_size", 0)) >= _MULTILINGUAL_VOCABULARY

    @cached_property
    def suppressed(self) -> tuple[int, ...]:
        """Tokens that a model that transcribes must not write, such as `♪`. Raises: SettingsError, as above."""
        config = self._read(_GENERATION) if (self.model_dir / _GENERATION).exists() else {}
        tokens = config.get("suppress_tokens", self._read("config.json").get("suppress_tokens")) or ()
        return tuple(int(token) for token in tokens if int(token) >= 0)

    @cached_property
    def dimensions(self) -> Sequence[int]:
        """Lengths of vectors that clients may ask for, besides the model's own; none unless it was trained for that.

        Raises: SettingsError, as above.
        """
        overrides = self.args.get("hf_overrides")
        config = self._read("config.json") | (overrides if isinstance(overrides, dict) else {})
        if lengths := config.get("matryoshka_dimensions"):
            return [int(n) for n in lengths]
        return range(1, int(config["hidden_size"]) + 1) if config.get("is_matryoshka") else ()

    @cached_property
    def vector_length(self) -> int | None:
        """The length of the model's own vectors; None: not known. Raises: SettingsError, as above."""
        if self.engine == "mock":
            return int(self.args.get("dimensions", MOCK_DIMENSIONS))
        modules = self.model_dir / "modules.json"
        if modules.exists() and "Dense" in modules.read_text():  # of sentence-transformers, with a length of its own
            return None
        return self._read("config.json").get("hidden_size")

    @cached_property
    def instructions(self) -> Mapping[str, str]:
        """Instructions that the model was trained to have before a text, by the text's kind.

        Raises: SettingsError, as above.
        """
        prompts = self._read("config.json").get("task_instructions")
        if not prompts and (self.model_dir / _INSTRUCTIONS).exists():
            prompts = self._read(_INSTRUCTIONS).get("prompts")
        pairs = prompts.items() if isinstance(prompts, dict) else ()
        return {kind: text for kind, text in pairs if isinstance(text, str)}

    @cached_property
    def labels(self) -> Sequence[str]:
        """The classes' names, in the order of their numbers. Raises: SettingsError, as above."""
        names = self._read("config.json").get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}  # Hugging Face's default
        return [names[number] for number in sorted(names, key=int)]

    def _read(self, file: str) -> dict[str, Any]:
        try:
            doc = json.loads((self.model_dir / file).read_text())
        except (OSError, ValueError) as exc:
            raise SettingsError(f"path={self.model_dir}: no readable {file} there ({exc})") from exc
        if not isinstance(doc, dict):
            raise SettingsError(f"path={self.model_dir}: no readable {file} there (it is no JSON object)")
        return doc


class Table(_Part):
    """A pool for each class of requests: rows by latency target, columns by length.

    Edges are upper bounds, ascending; the last row and column have none. So there is one more of each than edges.
    """

    tokens: list[Count] = []  # prefill: prompt tokens; decode: prompt and answer
    target_ms: list[Annotated[float, Field(gt=0)]] = []  # prefill: TTFT; decode: time between tokens
    pools: Annotated[list[list[str]], Field(min_length=1)]  # a list for each row

    @model_validator(mode="after")
    def _fits(self) -> Self:
        rows, columns = len(self.target_ms) + 1, len(self.tokens) + 1
        if len(self.pools) != rows or any(len(row) != columns for row in self.pools):
            raise ValueError(
                f"{len(self.target_ms)} target_ms and {len(self.tokens)} tokens need {rows} rows of {columns} pools, "
                f"and there are rows of {[len(row) for row in self.pools]}"
            )
        if sorted(self.tokens) != self.tokens or sorted(self.target_ms) != self.target_ms:
            raise ValueError("edges have to ascend")
        return self


class Select(_Part):
    """Tables by which a request goes to one of a model's pools; without a table, to any of them."""

    prefill: Table | None = None  # among the pools of role prefill, by prompt tokens and TTFT
    decode: Table | None = None  # among the others, by tokens of prompt and answer and target time between tokens


class Alias(_Part):
    """Another name for a model, under which others may stand in for it. May be changed at run time."""

    primary: str  # a model of this file, not an alias; an alias that is made at run time may also name LoRA adapters
    # The model that answers while the primary one has no worker, or no room.
    fallback: str | None = None
    # By model: the share of the requests that it gets, such as 0.05 for a new version. A session keeps its version.
    split: dict[str, Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]] = {}

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if sum(self.split.values()) > 1:
            raise ValueError(f"the shares of split are {sum(self.split.values()):g} in all, which is more than 1")
        return self


def alias_problem(name: str, alias: Alias, tasks: Mapping[str, Task]) -> str | None:
    """The reason why this can't be an alias, or None. `tasks`: each model's."""
    if name in tasks:
        return "there is a model of that name"
    for field, model in [
        ("primary", alias.primary),
        ("fallback", alias.fallback),
        *(("split", m) for m in alias.split),
    ]:
        if model is not None and model not in tasks:
            return f"{field}: '{model}' is no model (there are: {', '.join(sorted(tasks))})"
        if model is not None and tasks[model] != tasks[alias.primary]:
            return f"{field}: '{model}' does {tasks[model]}, and '{alias.primary}' does {tasks[alias.primary]}"
    return None


_INPUT = "{input}"


def _template(text: str) -> str:
    if _INPUT not in text:
        raise PydanticCustomError("no_input", "has no {input}", {"input": _INPUT})
    return text


class Stage(_Part):
    """A model's part in a pipeline."""

    model: Annotated[str, Field(min_length=1)]  # a model of this file: no alias, and no other pipeline
    # What it is asked, with {input} in the place of the text so far: the client's, or what the stage before has made.
    template: Annotated[str, AfterValidator(_template)] = _INPUT
    instructions: Annotated[str, Field(min_length=1)] | None = None  # a system message, before the client's own
    max_tokens: Count | None = None  # of what it writes, if another stage follows; null: as the model has it
    show: bool = True  # whether clients see what it has made, if another stage follows; else nobody does

    def asked(self, text: str) -> str:
        return self.template.replace(_INPUT, text)


class Pipeline(_Part):
    """A name that clients ask for as for a model, and that several models serve, one after the other."""

    # The first one writes down speech or generates, the last one generates or paints pictures, all between generate.
    stages: Annotated[list[Stage], Field(min_length=2, max_length=8)]


class Objective(_Part):
    """The latencies that a model's clients are to get."""

    ttft_s: Annotated[float, Field(gt=0)]  # seconds to a request's first token, at most
    itl_s: Annotated[float, Field(gt=0)]  # mean seconds between the tokens after it, at most
    share: Annotated[float, Field(gt=0, lt=1)] = 0.99  # of the requests, that get both


class PlannerRules(_Part):
    """Objectives and a number of GPUs that `xylem planner` plans for; each pool's bounds are in its `scale`."""

    objectives: dict[str, Objective] = {}  # by model
    gpus: Count | None = None  # of all pools with `scale` together; null: no limit


class PoolsFile(_Part):
    """The file's content; an unknown key is refused by name."""

    # By name: letters, digits, `_` and `-`; not `batch`.
    pools: Annotated[dict[Annotated[PoolId, Field(pattern=r"^[A-Za-z0-9_-]+$")], Pool], Field(min_length=1)]
    select: dict[str, Select] = {}  # by model
    aliases: dict[AliasName, Alias] = {}  # other names for models, by name
    pipelines: dict[AliasName, Pipeline] = {}  # by name
    planner: PlannerRules = PlannerRules()
