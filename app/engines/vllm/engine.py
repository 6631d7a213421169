"""The adapter: one AsyncLLM and the requests on it."""

import asyncio
import math
import multiprocessing
import os
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, nullcontext, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

# Read when huggingface_hub is imported: models are local directories, and nothing is downloaded.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import psutil
import structlog
import vllm
from msgspec.structs import replace
from vllm.config import VllmConfig
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.metrics.loggers import PrometheusStatLogger

from app.engines.base import (
    Embedding,
    EncodeRequest,
    EngineInfo,
    EngineStats,
    GenerateRequest,
    KvEventSource,
    Node,
    PictureRequest,
    Prefilled,
    StepOutput,
)
from app.engines.checks import check_new, check_sound
from app.engines.grammar_compilers import compiler_of
from app.engines.pool_args import set_environment
from app.engines.resume import part
from app.engines.vllm.adapters import VllmAdapters
from app.engines.vllm.args import engine_args, metrics_environment, vllm_config
from app.engines.vllm.control import VllmControl
from app.engines.vllm.convert import translate
from app.engines.vllm.cpu_limits import check_on_cpu
from app.engines.vllm.elastic import scale
from app.engines.vllm.embeddings import EmbeddingFolder
from app.engines.vllm.encoding import vectors
from app.engines.vllm.expansion import expansion, signs_of
from app.engines.vllm.groups import cache_groups
from app.engines.vllm.handoff import VllmLender, block_bytes
from app.engines.vllm.media import allowed, encoded, kinds, shape
from app.engines.vllm.packages import check_processor
from app.engines.vllm.prompt_embeds import OWN_KEYS
from app.engines.vllm.requests import answer, can_force, discard, prefill
from app.engines.vllm.resumed import resumed
from app.engines.vllm.sockets import socket_folder
from app.engines.vllm.stats import StatLogger
from app.engines.vllm.tiers.config import OFFLOADING, tells_of_tiers
from app.engines.vllm.tiers.shared_memory import remove_dead_regions
from app.engines.vllm_plugin import is_loaded
from app.errors import EngineFailed, PromptTooLong, SettingsError
from app.ids import RunId
from app.messages.handoff import KvHandle
from app.messages.kinds import GRAMMAR_KINDS, GrammarKind
from app.messages.media import MediaKind, MediaSign
from app.pools.schema import Pool
from app.tokenizing.tokenizer import load_tokenizer

_SHUTDOWN_S = 2.0  # after which vLLM's processes are killed; on a CPU its worker never leaves by itself
_REAP_S = 5.0  # how long a killed process may take to vanish

log = structlog.get_logger(__name__)


class VllmEngine:
    """Implements `app.engines.base.Engine`, Adapters, Disaggregated, Encoder, PrefixResetter and Transcriber.

    `control.py` has Pauser, Sleeper, Weights and Profiler, `elastic.py` has Elastic, `media.py` has PictureEncoder,
    `expansion.py` has MediaExpander.

    A pool's `args` are fields of vLLM's AsyncEngineArgs, and `env`: environment variables to be set
    unless they are set already.
    """

    transcribes = True

    def __init__(self, pool: Pool, address: str = "127.0.0.1", node: Node | None = None) -> None:
        """Raises: SettingsError (unknown arguments)."""
        self._pool, self._task = pool, pool.task
        self._ranks_here = math.inf if node is None else max(1, pool.data_parallel_size // pool.nodes)
        apart = pool.embeddings or pool.role == "encode"
        self._folder = EmbeddingFolder() if apart else None  # of pictures that are encoded apart
        try:
            self._args = engine_args(pool, address, str(self._folder.path) if self._folder else "", node)
        except SettingsError:
            self._end_folder()
            raise
        self._stats = StatLogger()
        self._live: dict[RunId, int] = {}  # choices, or inputs, of each request in flight
        self._engine: AsyncLLM | None = None  # set by start
        self._lender: VllmLender | None = None  # set by start where the pool hands KV over
        self._adapters = VllmAdapters(0, pool.model_dir)  # set by start where the pool's args have enable_lora
        self._model_dir = pool.model_dir
        self._tokenizer = load_tokenizer(pool.model_dir, pool.chat_template, pool.tokenizer_mode)
        self._blocks = 0
        self._processes: list[BaseProcess] = []
        self._control = control = VllmControl(self._loaded, str(pool.model_dir), pool.tiers)
        self.pause, self.resume = control.pause, control.resume
        self.sleep, self.wake, self.is_sleeping = control.sleep, control.wake, control.is_sleeping
        self.update_weights = control.update_weights
        self.start_profile, self.stop_profile = control.start_profile, control.stop_profile
        self._keeps_metrics = False
        self._speculates = bool(self._args.fields.get("speculative_config"))

    def configuration(self) -> dict[str, Any]:
        return {"environment": self._args.environment, "AsyncEngineArgs": self._args.fields}

    def keep_metrics(self) -> None:
        self._keeps_metrics = True

    async def start(self) -> EngineInfo:
        set_environment(self._args.environment)
        os.environ["VLLM_RPC_BASE_PATH"] = folder = socket_folder()
        if self._keeps_metrics:
            set_environment(metrics_environment(self._args.fields, folder))
        if dead := await asyncio.to_thread(remove_dead_regions):
            log.info("dead_regions_removed", files=dead)
        began = time.monotonic()
        self._engine = engine = await asyncio.to_thread(self._load)
        await engine.get_supported_tasks()  # vLLM then listens to its processes on this loop
        config = engine.vllm_config
        if config.model_config.is_multimodal_model:
            await engine.reset_mm_cache()  # vLLM has then tried the processor, as it does beside the loading
            await asyncio.to_thread(check_processor, config.model_config)
        self._blocks = config.cache_config.num_gpu_blocks or 0
        self._lender = VllmLender(config, self._stats) if _hands_over(config) else None
        lora = config.lora_config
        most = (lora.max_cpu_loras or lora.max_loras) if lora else 0
        self._adapters = VllmAdapters(most, self._model_dir)
        log.info("vllm loaded", action="engine_loaded", seconds=round(time.monotonic() - began, 1))
        groups, unindexed_reason = await cache_groups(engine)
        signs = await signs_of(engine, allowed(engine)) if self._task == "generate" else ()
        self._info = EngineInfo(
            block_size=config.cache_config.block_size,
            total_blocks=self._blocks,
            max_running=config.scheduler_config.max_num_seqs,
            max_model_len=config.model_config.max_model_len,
            ranks=config.parallel_config.data_parallel_size,
            block_bytes=block_bytes(config) if self._lender else 0,
            grammars=_grammars(config.structured_outputs_config.backend),
            grammar_compiler=compiler_of(config.structured_outputs_config.backend),
            max_adapters=most,
            max_adapter_rank=lora.max_lora_rank if lora else 0,
            version=vllm.__version__,
            media=("audio",) if self._task == "transcribe" else kinds(engine),
            embeddings=await shape(engine, _sign(signs)) if self._pool.embeddings else None,
            computes=self._pool.role != "encode",
            tier_block_bytes=block_bytes(config) if tells_of_tiers(config) and not groups else 0,
            peers=self._pool.peers and self._lender is not None,
            groups=groups,
            unindexed=unindexed_reason,
            signs=signs,
        )
        return self._info

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[StepOutput, None]:
        with self._runs(request, request.sampling.n) as engine:
            lora = self._adapters.find(request.adapter)
            if request.begun and not can_force(self._lender, request):
                outputs = resumed(engine, self._tokenizer, request, lora)
            else:
                outputs = answer(engine, self._lender, request, lora)
            async with self._has_pictures(request), aclosing(outputs) as steps:
                async for step in steps:
                    yield step

    async def encode_picture(self, request: PictureRequest) -> Embedding:
        if self._folder is None:
            raise EngineFailed("This pool's vLLM encodes no pictures for others.")
        with self._runs(request, 1) as engine:
            return await encoded(engine, self._folder, request, _sign(self._info.signs))

    async def expansion(self, kind: MediaKind, shape: Sequence[int], number: int, of: int) -> list[int]:
        engine, signs = self._loaded(), {sign.kind: sign for sign in self._info.signs}
        return await expansion(engine, signs[kind], shape, number, of)

    async def encode(self, request: EncodeRequest) -> bytes:
        with self._runs(request, len(request.inputs)) as engine:
            return await vectors(engine, request)

    async def prefill(self, request: GenerateRequest) -> Prefilled:
        with self._runs(request, 1) as engine:
            async with self._has_pictures(request):
                return await prefill(engine, self._lender, request, self._adapters.find(request.adapter))

    async def discard(self, handoff: KvHandle) -> None:
        await discard(self._loaded(), handoff)

    async def abort(self, request: RunId) -> None:
        if request in self._live:
            await self._loaded().abort(self._ids(request))

    def stats(self) -> EngineStats:
        # vLLM reports only after a step with output, so not when the last request is aborted.
        live = sum(self._live.values())
        running = min(self._stats.running, live)
        used_blocks = round(self._stats.kv_usage * self._blocks)
        lent_blocks = self._lender.lent_blocks(used_blocks) if self._lender else 0
        steps, speculation = self._stats.steps.read(), self._stats.speculation
        return EngineStats(
            running=running,
            waiting=live - running,
            used_blocks=used_blocks if live or lent_blocks else 0,
            prefill_tokens=self._stats.prefill_tokens,
            pulled_tokens=self._stats.pulled_tokens,
            lent_blocks=lent_blocks,
            step_s=steps.base_s,
            request_step_s=steps.request_s,
            drafts=speculation.drafts,
            drafted_tokens=speculation.drafted,
            accepted_tokens=tuple(speculation.accepted),
            host_bytes_per_s=self._stats.tiers.host_bytes_per_s,
            store_bytes_per_s=self._stats.tiers.store_bytes_per_s,
        )

    def kv_events(self) -> dict[int, KvEventSource]:
        return {
            rank: KvEventSource(_connectable(c.endpoint), _connectable(c.replay_endpoint), c.topic, OWN_KEYS)
            for rank, c in self._loaded().get_kv_event_sources().items()
            # Without replay, lost events could not be recovered. Those of ranks on other hosts are read there.
            if c.replay_endpoint and rank < self._ranks_here
        }

    async def reset_prefix_cache(self) -> bool:
        return bool(await self._loaded().reset_prefix_cache(reset_connector=self._pool.tiers is not None))

    async def add_adapter(self, name: str, path: Path) -> None:
        try:
            await self._adapters.add(self._loaded(), name, path)
        except EngineDeadError as exc:
            raise translate(exc) from exc

    async def remove_adapter(self, name: str) -> None:
        try:
            await self._adapters.remove(self._loaded(), name)
        except EngineDeadError as exc:
            raise translate(exc) from exc

    async def scale(self, ranks: int) -> EngineInfo:
        await scale(self._loaded(), ranks, self._stats)
        self._info = replace(self._info, ranks=ranks)
        return self._info

    async def close(self) -> None:
        engine, self._engine = self._engine, None
        self._end_folder()
        if engine is not None:
            await engine.abort([id_ for request in self._live for id_ in self._ids(request)])
            if engine.output_handler is not None:
                engine.output_handler.cancel()  # else it reports the end of its processes as a failure
            with suppress(psutil.NoSuchProcess):  # one has ended just before vLLM would kill it
                await asyncio.to_thread(engine.shutdown, _SHUTDOWN_S)
            for process in self._processes:  # vLLM doesn't wait for those that it kills
                await asyncio.to_thread(process.join, _REAP_S)

    def _has_pictures(self, request: GenerateRequest) -> AbstractAsyncContextManager[None]:
        """Has what others encoded of its pictures in the folder meanwhile."""
        return self._folder.holding(request) if self._folder and request.media else nullcontext()

    def _end_folder(self) -> None:
        if self._folder is not None:
            self._folder.close()

    def _load(self) -> AsyncLLM:
        config = vllm_config(self._args.fields)
        others = multiprocessing.active_children()
        try:
            engine = AsyncLLM.from_vllm_config(config, disable_log_stats=True, stat_loggers=[self._stats.make])
        except Exception as exc:
            raise EngineFailed(f"vLLM did not start: {exc}") from exc
        self._processes = [child for child in multiprocessing.active_children() if child not in others]
        if not self._keeps_metrics:
            # vLLM adds one for Prometheus: an eighth of what a worker does for a short answer.
            loggers = engine.logger_manager.stat_loggers
            loggers[:] = [one for one in loggers if not isinstance(one, PrometheusStatLogger)]
        return engine

    def _ids(self, request: RunId) -> list[RunId]:
        """The ids that it may have in vLLM."""
        return [request, *(part(request, index) for index in range(self._live[request]))]

    def _loaded(self) -> AsyncLLM:
        if self._engine is None:
            raise EngineFailed("The engine is not running.")
        return self._engine

    @contextmanager
    def _runs(self, request: GenerateRequest | EncodeRequest | PictureRequest, choices: int) -> Iterator[AsyncLLM]:
        """Count the request while it is in the engine. Raises: XylemError only."""
        engine = self._loaded()
        self._check(request, engine.model_config.max_model_len)
        self._live[request.id] = choices
        try:
            yield engine
        except Exception as exc:
            raise translate(exc) from exc
        finally:
            del self._live[request.id]

    def _check(self, request: GenerateRequest | EncodeRequest | PictureRequest, context_len: int) -> None:
        """Refuses what vLLM would accept, or would refuse with another error."""
        check_new(request.id, self._live)
        self._control.check()
        if not isinstance(request, GenerateRequest):
            return
        check_on_cpu(request.sampling, speculates=self._speculates, adapters=self._adapters.most > 0)
        check_sound(request, self._task)
        if len(request.prompt) >= context_len:
            raise PromptTooLong(
                f"The prompt has {len(request.prompt)} tokens; "
                f"with an answer of at least one token the model takes {context_len}."
            )


def _sign(signs: Sequence[MediaSign]) -> MediaSign | None:
    """The sign of a picture."""
    return next((sign for sign in signs if sign.kind == "image"), None)


def _hands_over(config: VllmConfig) -> bool:
    """Whether it hands KV over: not where its only connector is that of the tiers."""
    return config.kv_transfer_config is not None and config.kv_transfer_config.kv_connector != OFFLOADING


def _grammars(backend: str) -> tuple[GrammarKind, ...]:
    """Empty without our plugin: then answers could not be continued on another worker, so they are refused at once."""
    if not is_loaded():
        log.warning("vllm_plugin_not_loaded", reason="the installed package is older, or VLLM_PLUGINS is set")
        return ()
    return GRAMMAR_KINDS if backend == "xgrammar" else ("json", "regex", "choice")


def _connectable(endpoint: str) -> str:
    return endpoint.replace("//*:", "//127.0.0.1:").replace("//0.0.0.0:", "//127.0.0.1:")
