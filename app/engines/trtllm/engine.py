"""The adapter: one LLM and the requests on it."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import Any

from app.engines.log_level import log_level

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # models are directories here, nothing is looked up
os.environ.setdefault("TLLM_LOG_LEVEL", log_level())  # TensorRT-LLM reads it when it is imported

import structlog
import tensorrt_llm
from tensorrt_llm._torch.peft.lora.config import LoraConfig
from tensorrt_llm.llmapi.llm import LLM
from tensorrt_llm.llmapi.llm_args import CacheTransceiverConfig, KvCacheConfig, SchedulerConfig
from tensorrt_llm.metrics import MetricsCollector

from app.engines.base import EngineInfo, EngineStats, GenerateRequest, KvEventSource, Prefilled, StepOutput
from app.engines.checks import check_new, check_request
from app.engines.grammar_compilers import compiler_of
from app.engines.pool_args import set_environment
from app.engines.trtllm.adapters import TrtllmAdapters
from app.engines.trtllm.args import engine_args
from app.engines.trtllm.caches import Caches
from app.engines.trtllm.convert import translate
from app.engines.trtllm.groups import has_states, has_windows
from app.engines.trtllm.handoff import Compatible, TrtllmLender, block_bytes
from app.engines.trtllm.media import Eyes, model_config, picture_token, shape
from app.engines.trtllm.requests import Loaded, Run
from app.engines.trtllm.stats import Iterations
from app.errors import AdapterFailed, EngineDead, EngineFailed, RequestError, SettingsError, XylemError
from app.grammars.checker import GrammarChecker
from app.ids import RunId
from app.messages.handoff import KvHandle
from app.messages.job import Sampling
from app.messages.kinds import GRAMMAR_KINDS, GrammarKind
from app.messages.lease import CacheGroup
from app.pools.schema import Pool
from app.tokenizing.tokenizer import load_tokenizer

_POLL_S = 0.5  # how long the engine waits for news before it says that there are none
_PAUSE_S = 0.01
_AFTER_ERROR_S = 1.0
_CLOSE_S = 2.0  # for aborted requests to end
_CONFIGS = {
    "kv_cache_config": KvCacheConfig,
    "cache_transceiver_config": CacheTransceiverConfig,
    "lora_config": LoraConfig,
    "scheduler_config": SchedulerConfig,
}

log = structlog.get_logger(__name__)


class TrtllmEngine:
    """Implements `app.engines.base.Engine`, `Adapters`, `Disaggregated`, `Metered`. `encoder.py` has PictureEncoder.

    A pool's `args` are fields of TensorRT-LLM's LLM, and `backend`, `engine_args`, `override_engine_args` and `env`.
    """

    def __init__(self, pool: Pool, address: str = "127.0.0.1") -> None:
        """Raises: SettingsError (bad arguments)."""
        self._pool, self._args = pool, engine_args(pool)
        self._tokenizer = load_tokenizer(pool.model_dir, pool.chat_template, pool.tokenizer_mode)
        config = model_config(pool.model_dir)
        token = picture_token(config)
        self._eyes = None if token is None else Eyes(token, self._tokenizer)
        dtype = str(self._args.fields.get("dtype") or "auto")
        self._embeddings = shape(config, dtype) if pool.embeddings and token is not None else None
        self._loaded: Loaded | None = None  # set by start
        self._live: dict[RunId, Run] = {}
        self._iterations = Iterations()
        self._collector: MetricsCollector | None = None  # set by keep_metrics
        self._caches: Caches | None = None  # set by start, if it tells of them
        self._polls: list[asyncio.Task[None]] = []
        self._grammars = GrammarChecker()
        # What `xgrammar_process.py` has written, llguidance can't read.
        self._ebnf = GrammarChecker("app.engines.ebnf_process")
        self._idle = asyncio.Event()
        self._idle.set()

    def configuration(self) -> dict[str, Any]:
        return {"environment": self._args.environment, "LLM": self._args.fields}

    def keep_metrics(self) -> None:
        """Keeps those of iterations. Those of requests would have to be measured for them (`return_perf_metrics`)."""
        self._collector = MetricsCollector(labels={"model_name": self._pool.model, "engine_type": "trtllm"})

    async def start(self) -> EngineInfo:
        set_environment(self._args.environment)
        began = time.monotonic()
        llm = await asyncio.to_thread(self._load)
        pool, fields = self._pool, self._args.fields
        capacity = await asyncio.to_thread(llm.get_kv_cache_capacity)
        block_size, blocks = capacity["tokensPerBlock"], capacity["maxNumBlocks"]
        config = _model(pool.model_dir)
        cache = fields["kv_cache_config"]
        size = block_bytes(config, block_size, str(cache.get("dtype") or "auto"))
        lora = fields["lora_config"] if fields.get("enable_lora") else {}
        most = lora.get("max_cpu_loras") or lora.get("max_loras") or 0
        self._loaded = Loaded(
            llm,
            self._tokenizer,
            sorted(self._tokenizer.ends - {self._tokenizer.eos_id}),
            vocabulary=config.get("vocab_size", self._tokenizer.vocab_size),
            context_len=pool.context_len,
            ranks=pool.data_parallel_size,
            block_bytes=size,
            block_size=block_size,
            lender=_lender(fields, block_size, size, config),
            adapters=TrtllmAdapters(most, pool.model_dir),
            eyes=self._eyes,
        )
        tells = bool(cache.get("event_buffer_max_size") and cache.get("enable_block_reuse", True))
        groups, unindexed_reason = await self._follow(llm, config) if tells else ((), "")
        if fields.get("enable_iter_perf_stats"):
            self._poll("stats", llm.get_stats_async, self._read_iteration)
        log.info("tensorrt_llm loaded", action="engine_loaded", seconds=round(time.monotonic() - began, 1))
        return EngineInfo(
            block_size=block_size,
            total_blocks=blocks,
            max_running=pool.max_running,
            max_model_len=pool.context_len,
            ranks=pool.data_parallel_size,
            block_bytes=size if self._loaded.lender is not None else 0,
            grammars=_grammars(fields),
            grammar_compiler=compiler_of(fields.get("guided_decoding_backend")),
            version=str(getattr(tensorrt_llm, "__version__", "")),
            max_adapters=most,
            max_adapter_rank=lora["max_lora_rank"] if most else 0,
            media=() if self._eyes is None else ("image",),
            embeddings=self._embeddings,
            tier_block_bytes=size if tells and cache.get("host_cache_size") and not groups else 0,
            groups=groups,
            unindexed=unindexed_reason,
        )

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[StepOutput, None]:
        with self._runs(request) as run:
            await self._check_grammar(request)
            async with aclosing(run.steps()) as steps:
                async for step in steps:
                    yield step

    async def prefill(self, request: GenerateRequest) -> Prefilled:
        with self._runs(request) as run:
            await self._check_grammar(request)
            return await run.prefill()

    async def discard(self, handoff: KvHandle) -> None:
        """TensorRT-LLM has no word for it: the holder frees the KV after kv_transfer_timeout_ms."""

    async def abort(self, request: RunId) -> None:
        if request in self._live:
            self._live[request].abort()

    def stats(self) -> EngineStats:
        # The engine reports after an iteration, so nothing tells of a last request's end; and who has begun runs.
        live = sum(run.open for run in self._live.values())
        begun_choices = sum(run.running for run in self._live.values())
        running = min(live, max(begun_choices, self._iterations.running))
        runtime, used_blocks = self._loaded, self._iterations.used_blocks
        lent_blocks = (
            runtime.lender.lent_blocks(used_blocks) if runtime is not None and runtime.lender is not None else 0
        )
        steps = self._iterations.steps.read()
        return EngineStats(
            running=running,
            waiting=live - running,
            used_blocks=max(used_blocks, begun_choices) if live else lent_blocks,
            prefill_tokens=runtime.prefill_tokens if runtime is not None else 0,
            pulled_tokens=runtime.pulled_tokens if runtime is not None else 0,
            lent_blocks=lent_blocks,
            step_s=steps.base_s,
            request_step_s=steps.request_s,
        )

    def kv_events(self) -> dict[int, KvEventSource]:
        return {} if self._caches is None else self._caches.sources()

    async def add_adapter(self, name: str, path: Path) -> None:
        adapters = self._ready().adapters
        if not await adapters.add(name, path):
            return
        # It is read with a first request, so one token says whether it can be.
        trial = GenerateRequest(RunId(f"adapter {name}"), [0], Sampling(max_tokens=1, temperature=0.0), adapter=name)
        try:
            async for _ in self.generate(trial):
                pass
        except BaseException as exc:
            adapters.remove(name)
            if not isinstance(exc, XylemError) or isinstance(exc, EngineDead):
                raise
            raise AdapterFailed(f"TensorRT-LLM can't load the adapter '{name}': {exc.message}") from exc

    async def remove_adapter(self, name: str) -> None:
        self._ready().adapters.remove(name)

    async def close(self) -> None:
        runtime, self._loaded = self._loaded, None
        if runtime is None:
            return
        try:
            for run in self._live.values():
                run.abort()
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await self._idle.wait()
        finally:
            ending = [*self._polls, *runtime.tasks]
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)
            if self._caches is not None:
                await self._caches.close()
            await asyncio.to_thread(self._grammars.close)
            await asyncio.to_thread(self._ebnf.close)
            await asyncio.to_thread(runtime.llm.shutdown)

    def _load(self) -> LLM:
        """Raises: SettingsError, EngineFailed."""
        fields = dict(self._args.fields)
        try:
            for name, make in _CONFIGS.items():
                if isinstance(fields.get(name), dict):
                    fields[name] = make(**fields[name])
            make_llm = _autodeploy() if self._args.autodeploy else LLM
            return make_llm(**fields)
        except (ValueError, TypeError) as exc:  # pydantic's errors are ValueErrors
            raise SettingsError(f"TensorRT-LLM refuses these engine arguments: {exc}") from exc
        except Exception as exc:
            raise EngineFailed(f"TensorRT-LLM did not start: {exc!r}") from exc

    async def _check_grammar(self, request: GenerateRequest) -> None:
        """The engine's own refusal comes as a failure. Raises: RequestError, Saturated, NoProcess."""
        grammar = request.sampling.grammar
        if grammar is None:
            return
        is_ebnf = grammar.kind == "grammar" and "::=" in grammar.text
        if reason := (await (self._ebnf if is_ebnf else self._grammars).verdict(grammar)).reason:
            raise RequestError(f"The grammar: {reason}")

    @contextmanager
    def _runs(self, request: GenerateRequest) -> Iterator[Run]:
        """Count the request while it is in the engine. Raises: XylemError only."""
        runtime = self._ready()
        check_new(request.id, self._live)
        check_request(request, vocabulary_size=self._tokenizer.vocab_size, context_len=runtime.context_len)
        run = self._live[request.id] = Run(runtime, request)
        self._idle.clear()
        try:
            yield run
        except Exception as exc:
            raise translate(exc) from exc
        finally:
            del self._live[request.id]
            if not self._live:
                self._idle.set()

    def _ready(self) -> Loaded:
        if self._loaded is None:
            raise EngineFailed("The engine is not running.")
        return self._loaded

    async def _follow(self, llm: LLM, config: Mapping[str, Any]) -> tuple[tuple[CacheGroup, ...], str]:
        """Publishes its KV events from now on. Returns its groups of layers, or why its events can't be placed."""
        pool, windows = self._pool, self._args.fields["kv_cache_config"].get("max_attention_window")
        differs = bool(windows) or has_states(config) or has_windows(config, pool.context_len)
        first_events = await self._told(llm) if differs else []
        block_size, ranks = self._ready().block_size, pool.data_parallel_size
        caches = self._caches = Caches(first_events, ranks, block_size, pool.context_len)
        self._poll("kv events", llm.get_kv_cache_events_async, caches.take)
        if has_states(config):
            return (), "TensorRT-LLM's events don't tell states from layers that see everything"
        if differs and not caches.has_told:
            return (), "TensorRT-LLM has not told of this model's windows"
        return caches.groups, ""

    async def _told(self, llm: LLM) -> list[Mapping[str, Any]]:
        """The KV events of a first step, with which it tells of its groups. None where they can't be read yet."""
        request = GenerateRequest(RunId("groups"), [0, 0], Sampling(max_tokens=1, temperature=0.0))
        async for _ in self.generate(request):
            pass
        try:
            return [event async for event in llm.get_kv_cache_events_async(timeout=_POLL_S)]
        except Exception as exc:  # noqa: BLE001 (it must not end the start of an engine that answers)
            log.warning("trtllm_poll_failed", what="kv events", error=repr(exc))
            return []

    def _read_iteration(self, message: Mapping[str, Any]) -> None:
        self._iterations.read(message)
        if self._collector is not None:
            self._collector.log_iteration_stats(iteration_stats=message)

    def _poll(self, what: str, ask: Callable[..., AsyncIterable[Any]], take: Callable[[Any], None]) -> None:
        self._polls.append(asyncio.create_task(self._polling(what, ask, take), name=f"trtllm-{what}"))

    async def _polling(self, what: str, ask: Callable[..., AsyncIterable[Any]], take: Callable[[Any], None]) -> None:
        while self._loaded is not None:  # the engine's iterators may lose a cancellation
            try:
                async for report in ask(timeout=_POLL_S):
                    take(report)
                await asyncio.sleep(_PAUSE_S)
            except Exception as exc:  # noqa: BLE001 (it may be readable tomorrow)
                log.warning("trtllm_poll_failed", what=what, error=repr(exc))
                await asyncio.sleep(_AFTER_ERROR_S)


def _autodeploy() -> Any:
    from tensorrt_llm._torch import auto_deploy

    return auto_deploy.LLM


def _lender(fields: Mapping[str, Any], block_size: int, size: int, config: Mapping[str, Any]) -> TrtllmLender | None:
    transceiver = fields.get("cache_transceiver_config")
    if not transceiver:
        return None
    timeout_s = (transceiver.get("kv_transfer_timeout_ms") or 60_000) / 1e3
    return TrtllmLender(Compatible(block_size, size, str(config.get("model_type", ""))), timeout_s)


def _model(folder: Path) -> dict[str, Any]:
    """Its config.json. Raises: SettingsError."""
    config = model_config(folder)
    return config | (config.get("text_config") or {})  # of a model that sees: the language model's


def _grammars(fields: Mapping[str, Any]) -> tuple[GrammarKind, ...]:
    """None where an answer could not go on elsewhere: with drafts, a logits processor is not called for each token."""
    if fields.get("speculative_config") is not None:
        return ()
    kinds: dict[str | None, tuple[GrammarKind, ...]] = {"xgrammar": GRAMMAR_KINDS, "llguidance": ("json", "regex")}
    return kinds.get(fields.get("guided_decoding_backend"), ())
