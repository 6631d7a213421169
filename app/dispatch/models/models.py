"""The models that this deployment serves, as the API knows them from files and settings."""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from app.dispatch.inflight import RoutingHints
from app.dispatch.models.generation_defaults import generation_defaults
from app.dispatch.models.speech import Speech, speech_of
from app.dispatch.models.writing import Writing, dialect_name, writing_of
from app.endpoints import ROWS, EndpointName
from app.errors import ModelNotFound, PromptTooLong, RequestError, SettingsError
from app.ids import PoolId
from app.media.placeholders import PictureFamily, Sounds, pictures_of, sounds_of
from app.messages.kinds import Task
from app.messages.media import MediaKind
from app.pools.engine_args import drafts
from app.pools.schema import PaintRules, Pool, PoolsFile, Select
from app.routing.pool_table import select
from app.telemetry import Meters
from app.tokenizing.tokenizer import Tokenizer, load_tokenizer

_TOGETHER = 2**18  # tokens of one HTTP request, for models with a shorter context
_VERBS: Mapping[Task, str] = {
    "generate": "generates answers",
    "embed": "makes embeddings",
    "classify": "tells classes",
    "image": "paints",
    "transcribe": "writes down speech",
}
_DOES: Mapping[Task, str] = {
    task: f"{does} ({', '.join(row.path for row in ROWS if row.task == task)})" for task, does in _VERBS.items()
}
_SHOWN = 100  # characters of an unknown model's name in the error
_LISTED = 50  # names of served models in the error


@dataclass(frozen=True)
class Model:
    name: str
    pools: tuple[PoolId, ...]  # that generate answers, or encode
    prefill_pools: tuple[PoolId, ...]  # that only compute prompts
    select: Select | None  # the table that chooses among them, by length and latency target
    tokenizer: Tokenizer
    context_len: int  # tokens, prompt and answer together
    meters: Meters
    writing: Writing = Writing()  # noqa: RUF009 (frozen)
    dialect: str | None = None  # the name of the writing's
    # Defaults of sampling parameters, by their names in generation_config.json.
    defaults: Mapping[str, float] = field(default_factory=dict)
    task: Task = "generate"
    dimensions: Container[int] = ()  # as `Pool` says, here and below
    labels: Sequence[str] = ()
    parent: str | None = None  # the model that this one is a LoRA adapter for
    adapter: str | None = None  # `Adapter.versioned` of that
    drafts: bool = False  # its engines draft tokens from the prompt: see `engine_args.drafts`
    endpoints: frozenset[EndpointName] | None = None  # that may use it; None: all
    pictures: PictureFamily | None = None  # None: it takes none
    painting: PaintRules = PaintRules()  # noqa: RUF009 (frozen; what a model that paints may be asked for)
    speech: Speech | None = None  # of a model that transcribes
    encode_pools: tuple[PoolId, ...] = ()  # that only encode pictures
    embeds_width: int | None = None  # numbers in a row of `prompt_embeds`; None: no pool of it takes any
    sounds: Sounds | None = None  # None: it takes none in chats
    vector_length: int | None = None  # of its own embeddings; None: it makes none, or it is not known
    instructions: Mapping[str, str] = field(default_factory=dict)  # as `Pool` says

    @cached_property
    def markers(self) -> Mapping[MediaKind, str]:
        """The markers of the kinds that it takes in chats."""
        families: Mapping[MediaKind, PictureFamily | Sounds | None] = {"image": self.pictures, "audio": self.sounds}
        return {kind: family.marker for kind, family in families.items() if family is not None}

    @property
    def takes_frames(self) -> bool:
        """Whether a video is shown to it as pictures, one for each frame."""
        return self.pictures is not None and self.pictures.takes_videos

    @property
    def calls_tools(self) -> bool:
        """Whether chats with it may offer tools."""
        dialect = self.writing.dialect
        return dialect is not None and dialect.calls and self.tokenizer.tools_variable is not None

    @property
    def most_tokens(self) -> int:
        """Tokens that all prompts of one request may have together, or one text to tokenise or decode."""
        return max(_TOGETHER, self.context_len)

    def groups(self, tokens: int, wishes: RoutingHints) -> tuple[tuple[PoolId, ...], ...]:
        """The pools to choose a worker from, for a context of so many tokens; the table's choice comes first.

        Raises: RequestError for a latency target without a table.
        """
        for name, target, table in (
            ("ttft_ms", wishes.ttft_ms, self.select and self.select.prefill),
            ("itl_ms", wishes.itl_ms, self.select and self.select.decode),
        ):
            if target is not None and table is None:
                raise RequestError(
                    f"'routing.{name}': this model's pools are not chosen by it.", param=f"routing.{name}"
                )
        if self.select is None or self.select.decode is None:
            return (self.pools,)
        first = select(self.select.decode, tokens, wishes.itl_ms)
        return ((first,), *((pool,) for pool in self.pools if pool != first))

    def prefill_groups(self, tokens: int, wishes: RoutingHints) -> tuple[tuple[PoolId, ...], ...]:
        """The pools that may compute a prompt of so many tokens for another worker; empty: none."""
        if not self.prefill_pools:
            return ()
        if self.select is None or self.select.prefill is None:
            return (self.prefill_pools,)
        first = select(self.select.prefill, tokens, wishes.ttft_ms)
        return ((first,), *((pool,) for pool in self.prefill_pools if pool != first))

    def encode(self, text: str, param: str, *, add_special_tokens: bool = True) -> list[int]:
        """A prompt's token ids; `param`: its field in the request. Raises: PromptTooLong, without tokenising it all."""
        if least := self.tokenizer.least_tokens(text, self.context_len):
            raise self._too_long(f"at least {least}", param)
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def count(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The token ids of a text that may exceed the context. Raises: RequestError, without tokenising it all."""
        most = self.most_tokens
        least = self.tokenizer.least_tokens(text, most)
        tokens = [] if least else self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        if least or len(tokens) > most:
            raise RequestError(f"Texts of up to {most} tokens are tokenised here: this one has more.")
        return tokens

    def check_tokens(self, tokens: list[int]) -> None:
        """Raises: RequestError for no tokens, too many, or unknown ids."""
        if not tokens:
            raise RequestError("The prompt is empty.", param="prompt")
        if len(tokens) > self.most_tokens:
            raise RequestError(f"There are more than {self.most_tokens} token ids.", param="prompt")
        if max(tokens) >= self.tokenizer.vocab_size:
            raise RequestError(f"Token ids have to be below {self.tokenizer.vocab_size}.", param="prompt")

    def check_input(self, tokens: list[int], param: str) -> None:
        """Checks a text to be encoded. Raises: PromptTooLong; RequestError for no tokens, or unknown ids."""
        if not tokens:
            raise RequestError(f"'{param}' has no tokens.", param=param)
        if len(tokens) > self.context_len:
            raise self._too_long(str(len(tokens)), param)
        if max(tokens) >= self.tokenizer.vocab_size:
            raise RequestError(f"Token ids have to be below {self.tokenizer.vocab_size}.", param=param)

    def room(self, prompt: list[int], max_tokens: int | None, param: str) -> int:
        """Number of tokens that the answer may have. `param`: the prompt's field in the request.

        Raises: PromptTooLong, in OpenAI's words: clients match them, to choose another model.
        """
        answer_tokens = max(1, max_tokens or 0)
        total = len(prompt) + answer_tokens
        if total <= self.context_len:
            return self.context_len - len(prompt) if max_tokens is None else max_tokens
        if len(prompt) > self.context_len:
            raise self._too_long(str(len(prompt)), param)
        raise PromptTooLong(
            f"This model's maximum context length is {self.context_len} tokens. However, you requested {total} tokens "
            f"({len(prompt)} in the {param}, {answer_tokens} in the completion). "
            f"Please reduce the length of the {param} or completion.",
            param=param,
        )

    def _too_long(self, tokens: str, param: str) -> PromptTooLong:
        return PromptTooLong(
            f"This model's maximum context length is {self.context_len} tokens. However, your {param} resulted in "
            f"{tokens} tokens. Please reduce the length of the {param}.",
            param=param,
        )


def load_models(pools_file: PoolsFile) -> dict[str, Model]:
    """One Model per served name. Raises: SettingsError when its directory can't be read or its pools disagree."""
    models: dict[str, Model] = {}
    for pool_id, pool in pools_file.pools.items():
        model = models.get(pool.model)
        tokenizer = _tokenizer(pool)
        generates = pool.task == "generate"  # other models may have these files, but don't use them
        writing = writing_of(pool, tokenizer) if generates else Writing()
        defaults = generation_defaults(pool.model_dir) if generates and pool.generation_config == "auto" else {}
        endpoints = None if pool.endpoints is None else frozenset(pool.endpoints)
        processor_args = pool.args.get("mm_processor_kwargs")
        processor_args = processor_args if isinstance(processor_args, dict) else {}
        pictures = pictures_of(pool.model_dir, tokenizer, processor_args) if generates else None
        sounds = sounds_of(pool.model_dir) if generates else None
        speech = speech_of(pool, tokenizer) if pool.task == "transcribe" else None
        embeds_width = pool.hidden_size if pool.prompt_embeds else None
        if model and embeds_width is None:
            embeds_width = model.embeds_width
        same = (
            tokenizer,
            pool.context_len,
            writing,
            defaults,
            pool.task,
            endpoints,
            pictures,
            pool.painting,
            speech,
            sounds,
        )
        if model and same != (
            model.tokenizer,
            model.context_len,
            model.writing,
            model.defaults,
            model.task,
            model.endpoints,
            model.pictures,
            model.painting,
            model.speech,
            model.sounds,
        ):
            raise SettingsError(
                f"pools.{pool_id}: other task, path, template, tokenizer_mode, length, reasoning, dialect, "
                f"generation_config, endpoints, mm_processor_kwargs or painting than another pool of {pool.model}"
            )
        ids, prefill_ids, encode_ids = (model.pools, model.prefill_pools, model.encode_pools) if model else ((), (), ())
        if pool.role == "encode":
            encode_ids = (*encode_ids, pool_id)
        elif pool.role == "prefill":
            prefill_ids = (*prefill_ids, pool_id)
        else:
            ids = (*ids, pool_id)
        models[pool.model] = Model(
            pool.model,
            ids,
            prefill_pools=prefill_ids,
            select=pools_file.select.get(pool.model),
            tokenizer=tokenizer,
            context_len=pool.context_len,
            meters=Meters(pool.model),
            writing=writing,
            dialect=dialect_name(pool, tokenizer) if generates else None,
            defaults=defaults,
            task=pool.task,
            dimensions=pool.dimensions if pool.task == "embed" else (),
            labels=pool.labels if pool.task == "classify" else (),
            drafts=drafts(pool) and (model is None or model.drafts),
            endpoints=endpoints,
            pictures=pictures,
            painting=pool.painting,
            speech=speech,
            encode_pools=encode_ids,
            embeds_width=embeds_width,
            sounds=sounds,
            vector_length=pool.vector_length if pool.task == "embed" else None,
            instructions=pool.instructions if pool.task == "embed" else {},
        )
    return models


def _tokenizer(pool: Pool) -> Tokenizer:
    """The pool's tokenizer.

    Nobody asks that of a model that paints: its engine reads prompts with the pipeline's own.
    """
    if pool.task == "image":
        return load_tokenizer(Pool(model=pool.model, engine="mock").model_dir)
    return load_tokenizer(pool.model_dir, pool.chat_template, pool.tokenizer_mode)


def find_model(
    models: Mapping[str, Model],
    name: str,
    task: Task | None = "generate",
    may_ask: Callable[[str], bool] = lambda _: True,
) -> Model:
    """`task`: the task that the model must have; None: any that reads tokens. `may_ask`: whether the client knows it.

    Raises: ModelNotFound, RequestError.
    """
    model = models.get(name)
    if model is None:
        names = sorted(filter(may_ask, models))
        raise ModelNotFound(
            f"The model '{name[:_SHOWN]}' is not served here."
            + (f" Served: {', '.join([*names[:_LISTED], *['…'] * (len(names) > _LISTED)])}." if names else ""),
            param="model",
        )
    if task not in (None, model.task) or (task is None and model.task == "image"):
        names = sorted(other for other, one in models.items() if one.task == task and may_ask(other))
        able = ", ".join(names[:_LISTED])
        others = f" For this endpoint there are: {able}." if able else ""
        raise RequestError(f"The model '{name}' {_DOES[model.task]}, and nothing else.{others}", param="model")
    return model
