"""The adapter: one SGLang engine and the requests on it."""

import asyncio
import math
import signal
import threading
import time
from asyncio import Future
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import structlog
from msgspec.structs import replace
from sglang.srt.configs.model_config import AttentionArch
from sglang.srt.disaggregation.utils import FAKE_BOOTSTRAP_HOST
from sglang.srt.entrypoints.engine import Engine

from app.engines.base import (
    EncodeRequest,
    EngineInfo,
    EngineStats,
    GenerateRequest,
    KvEventSource,
    Node,
    Prefilled,
    StepOutput,
)
from app.engines.checks import check_inputs, check_new, check_request
from app.engines.grammar_compilers import compiler_of
from app.engines.pool_args import set_environment
from app.engines.sglang.adapters import SglangAdapters
from app.engines.sglang.args import CONTEXT_SPARE, adapters_held, engine_args, event_ranks, tells_of_host_memory
from app.engines.sglang.choice import SglangChoice
from app.engines.sglang.control import SglangControl
from app.engines.sglang.convert import translate
from app.engines.sglang.diffusion import check_block, check_diffusion, diffuses, keeps_seeds
from app.engines.sglang.encoding import vectors
from app.engines.sglang.events import event_sources
from app.engines.sglang.groups import cache_groups
from app.engines.sglang.media import Arguments, SglangMedia
from app.engines.sglang.processes import Processes, own_sigquit, remove_files
from app.engines.sglang.prompt_embeds import check_model, overrides
from app.engines.sglang.requests import Running, run
from app.engines.sglang.stats import Figuring
from app.engines.sglang_plugin import is_loaded
from app.engines.speculation import Speculation
from app.errors import EngineDead, EngineFailed, HandoffFailed, RequestError, SettingsError
from app.ids import RunId
from app.messages.handoff import KvHandle, Rendezvous
from app.messages.job import KvTransfer
from app.messages.kinds import GRAMMAR_KINDS, ExpertAction, GrammarKind
from app.messages.media import MediaKind
from app.pools.schema import Pool
from app.tokenizing.tokenizer import load_tokenizer

log = structlog.get_logger(__name__)
T = TypeVar("T")


@dataclass
class _Loaded:
    engine: Engine
    vocabulary_size: int
    block_bytes: int


class SglangEngine:
    """Implements `app.engines.base.Engine`, and of what an engine can besides: Adapters, Disaggregated, Encoder,
    PrefixResetter, Prober, Configured and ExpertRecorder.

    `control.py` has Pauser, Sleeper, Weights and Profiler.

    A pool's `args` are fields of SGLang's ServerArgs, and `env`: environment variables to be set unless they are set
    already.
    """

    def __init__(self, pool: Pool, address: str = "127.0.0.1", node: Node | None = None) -> None:
        """Raises: SettingsError (unknown arguments)."""
        self._pool, self._address = pool, address
        self._args, self._event_ranks = engine_args(pool, address, node), event_ranks(pool, node)
        self._tokenizer = load_tokenizer(pool.model_dir, pool.chat_template, pool.tokenizer_mode)
        self._processes, self._figuring, self._speculation = Processes(), Figuring(), Speculation()
        self._requests: dict[RunId, Running] = {}
        self._encoding: dict[RunId, int] = {}  # inputs of each request
        self._max_adapters = adapters_held(self._args.fields)
        self._adapters = SglangAdapters(self._max_adapters, pool.model_dir)
        self._media = SglangMedia()
        fields = self._args.fields
        self._keeps_seeds = bool(fields.get("enable_deterministic_inference")) or keeps_seeds(fields)
        self._pulled = 0  # tokens of prompts whose KV came from other engines
        self._loaded: _Loaded | None = None  # set by start
        self._failure = EngineFailed("The engine is not running.")
        self._control = control = SglangControl(
            lambda: self._ready().engine.tokenizer_manager, pool, self._args.fields, self._answered
        )
        self.pause, self.resume = control.pause, control.resume
        self.sleep, self.wake, self.is_sleeping = control.sleep, control.wake, control.is_sleeping
        self.update_weights = control.update_weights
        self.start_profile, self.stop_profile = control.start_profile, control.stop_profile
        self._end = asyncio.Event()  # from then on SGLang answers nobody
        own_sigquit()

    def configuration(self) -> dict[str, Any]:
        return {"environment": self._args.environment, "ServerArgs": self._args.fields}

    def keep_metrics(self) -> None:
        self._args.fields["enable_metrics"] = True

    async def start(self) -> EngineInfo:
        set_environment(self._args.environment)
        began, fields = time.monotonic(), self._args.fields
        check_block(self._pool, fields)
        engine = await self._processes.start(fields)
        self._listen(engine)
        try:
            if self._pool.prompt_embeds:
                check_model(engine)
            await asyncio.to_thread(self._media.load, engine, self._pool)
        except SettingsError:
            await self.close()
            raise
        except (OSError, ValueError) as exc:
            await self.close()
            raise SettingsError(f"{self._pool.model_dir}: pictures can't be processed: {exc}") from exc
        tokens = int(engine._scheduler_init_result.scheduler_infos[0]["max_total_num_tokens"])  # noqa: SLF001 (nothing public has it)
        if tokens < self._pool.context_len + CONTEXT_SPARE:
            await self.close()
            raise SettingsError(f"max_total_tokens: {tokens} don't hold one request of {self._pool.context_len}")
        tells = bool(fields.get("kv_events_config"))
        groups, unindexed_reason = cache_groups(engine, self._pool.block_size) if tells else ((), "")
        log.info("sglang loaded", action="engine_loaded", seconds=round(time.monotonic() - began, 1))
        return EngineInfo(
            block_size=self._pool.block_size,
            total_blocks=tokens // self._pool.block_size,
            max_running=self._pool.max_running,
            max_model_len=self._pool.context_len,
            ranks=self._pool.data_parallel_size,
            block_bytes=self._ready().block_bytes if self._pool.role != "both" else 0,
            meets_at=self._meets_at(),
            grammars=_grammars(),
            grammar_compiler=compiler_of(fields.get("grammar_backend")),
            seeds=self._keeps_seeds,
            computes=self._pool.role != "decode",
            max_adapters=self._max_adapters,
            max_adapter_rank=self._args.fields["max_lora_rank"] if self._max_adapters else 0,
            version=version("sglang"),
            media=(*self._media.kinds, *(("embeds",) if self._pool.prompt_embeds else ())),
            tier_block_bytes=self._ready().block_bytes if tells_of_host_memory(fields) and not groups else 0,
            groups=groups,
            unindexed=unindexed_reason,
            signs=self._media.signs,
            embeddings=self._media.embeddings,
            logprobs=not diffuses(fields),
        )

    async def probe(self, request: GenerateRequest) -> None:
        """Computes the prompt; where prefill and decode are apart, in a room of its own.

        The room's host is one to which SGLang transfers no KV.
        """
        if self._pool.role != "both":
            alone = Rendezvous(FAKE_BOOTSTRAP_HOST, 0, request.rank)
            # Where it decodes, the first token is one that came with the KV.
            sampling = replace(request.sampling, max_tokens=1 if self._pool.role == "prefill" else 2)
            request = replace(request, handoff=alone, sampling=sampling)
        finish = None
        with self._runs(request) as running:
            try:
                async for step in running.steps():
                    finish = step.finish
            finally:
                await running.end()
        if finish in (None, "abort"):
            raise EngineFailed("SGLang gave the prompt up.")

    async def expansion(self, kind: MediaKind, shape: Sequence[int], number: int, of: int) -> list[int]:
        return await asyncio.to_thread(self._media.expansion, kind, shape)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[StepOutput, None]:
        if isinstance(request.handoff, KvHandle):
            raise HandoffFailed("SGLang hands over at once, in a room.")
        if self._pool.role == "decode" and request.handoff is None:
            raise HandoffFailed("An SGLang that decodes computes no prompts.")
        waits = request.handoff is not None
        with self._runs(request) as running:
            try:
                async with aclosing(running.steps()) as steps:
                    async for step in steps:
                        yield replace(step, pulled=self._transfer(request)) if waits else step
                        waits = False
            finally:
                await running.end()

    async def encode(self, request: EncodeRequest) -> bytes:
        runtime = self._ready()
        self._control.check()
        check_inputs(request, self._pool, runtime.vocabulary_size)
        self._encoding[request.id] = len(request.inputs)
        try:
            return await self._answered(vectors(runtime.engine, request))
        except Exception as exc:
            raise translate(exc) from exc
        finally:
            del self._encoding[request.id]

    async def prefill(self, request: GenerateRequest) -> Prefilled:
        if self._pool.role != "prefill" or not isinstance(request.handoff, Rendezvous):
            raise EngineFailed("This SGLang computes prompts for others in a room only, in a pool of role prefill.")
        cached_tokens = 0
        with self._runs(request) as running:
            try:
                async for step in running.steps():
                    if step.finish == "abort":
                        raise HandoffFailed("SGLang gave the prefill up.")
                    cached_tokens = max(cached_tokens, step.cached_tokens)
            finally:
                await running.end()
        return Prefilled(None, None, cached_tokens)

    async def discard(self, handoff: KvHandle) -> None:
        """Does nothing: KV that goes through a room is kept for nobody."""

    async def abort(self, request: RunId) -> None:
        if request in self._requests:
            self._requests[request].abort()

    def stats(self) -> EngineStats:
        if self._loaded is None:
            return EngineStats()
        now = self._figuring.read(self._loaded.engine.tokenizer_manager.load_snapshot_reader.read_all())
        live = sum(running.choices for running in self._requests.values()) + sum(self._encoding.values())
        # SGLang counts a request as running one step after its first token, and for a moment after its end.
        running = min(max(now.running, sum(running.begun for running in self._requests.values())), live)
        return EngineStats(
            running=running,
            waiting=live - running,
            used_blocks=math.ceil(now.used_tokens / self._pool.block_size) if live else 0,
            prefill_tokens=now.prefill_tokens,
            pulled_tokens=self._pulled,
            step_s=now.steps.base_s,
            request_step_s=now.steps.request_s,
            drafts=self._speculation.drafts,
            drafted_tokens=self._speculation.drafted,
            accepted_tokens=tuple(self._speculation.accepted),
        )

    def kv_events(self) -> dict[int, KvEventSource]:
        config = self._args.fields.get("kv_events_config")
        if not config:
            return {}
        return event_sources(config, self._event_ranks, self._media.stand_ins)

    async def reset_prefix_cache(self) -> bool:
        if self._requests or self._encoding:  # with several ranks the first one's answer is all that is told
            return False
        return bool((await self._answered(self._ready().engine.tokenizer_manager.flush_cache())).success)

    async def record_experts(self, action: ExpertAction) -> None:
        if not self._args.fields.get("expert_distribution_recorder_mode"):  # else its processes would end
            raise RequestError("SGLang records no experts without args.expert_distribution_recorder_mode.")
        manager = self._ready().engine.tokenizer_manager
        await self._answered(getattr(manager, f"{action}_expert_distribution_record")())

    async def add_adapter(self, name: str, path: Path) -> None:
        await self._adapters.add(self._ready().engine, name, path)

    async def remove_adapter(self, name: str) -> None:
        await self._adapters.remove(self._ready().engine, name)

    async def close(self) -> None:
        runtime, self._loaded = self._loaded, None
        self._processes.forget()
        self._end.set()
        for running in list(self._requests.values()):
            running.abort()
        if runtime is not None:
            manager = runtime.engine.tokenizer_manager
            tasks = [task for task in manager.asyncio_tasks if not task.done()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for socket in (manager.recv_from_detokenizer, manager.send_to_scheduler, runtime.engine.send_to_rpc):
                socket.close(linger=0)  # else what nobody reads any more would keep this process from its end
        await asyncio.to_thread(self._processes.end)
        if runtime is not None:
            remove_files(runtime.engine.port_args)

    def _listen(self, engine: Engine) -> None:
        """Runs SGLang's manager on this loop from here on."""
        manager = engine.tokenizer_manager
        manager.auto_create_handle_loop()
        if threading.current_thread() is threading.main_thread():  # it has just taken these for itself
            for signal_number in (signal.SIGTERM, signal.SIGQUIT):
                asyncio.get_running_loop().remove_signal_handler(signal_number)
            own_sigquit()
        self._loaded = _Loaded(engine, manager.model_config.vocab_size, _block_bytes(manager, self._pool.block_size))
        self._processes.watch(self._died)

    def _died(self) -> None:
        self._failure = EngineDead("One of SGLang's processes died.")
        self._end.set()
        for running in self._requests.values():
            running.fail(self._failure)

    async def _answered(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Waits for SGLang's answer; it would not say that it died. Raises: SGLang's errors, EngineFailed."""
        answer, end = asyncio.ensure_future(coroutine), asyncio.ensure_future(self._end.wait())
        try:
            await asyncio.wait((answer, end), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise type(self._failure)(self._failure.message)
            return answer.result()
        finally:
            answer.cancel()
            end.cancel()

    @contextmanager
    def _runs(self, request: GenerateRequest) -> Iterator[Running]:
        """Its open choices begin. Raises: XylemError."""
        engine = self._ready().engine
        self._control.check()
        self._check(request)
        running = self._requests[request.id] = Running()
        media = self._prepared(engine, request)
        try:
            for index in range(request.sampling.n):
                if not (request.begun and request.begun[index].finished):
                    choice = SglangChoice(request, index, self._tokenizer, self._pool.context_len)
                    running.start(index, run(engine, request, choice, index, self._speculation, media=media))
            yield running
        finally:
            del self._requests[request.id]
            if media is not None:
                media.cancel()

    def _prepared(self, engine: Engine, request: GenerateRequest) -> Future[Arguments] | None:
        """The request's media or rows, as `run` takes them; None: it has none."""
        if not request.media:
            return None
        if _has_rows(request):
            return asyncio.ensure_future(asyncio.to_thread(overrides, engine, request))
        return asyncio.ensure_future(self._media.prepared(request.media, request.prompt))

    def _check(self, request: GenerateRequest) -> None:
        """Refuses what SGLang doesn't, or not before it breaks: a token that the model lacks ends its process."""
        check_new(request.id, self._requests)
        self._adapters.find(request.adapter)
        s = request.sampling
        check_request(request, vocabulary_size=self._ready().vocabulary_size, context_len=self._pool.context_len)
        if not (_has_rows(request) and self._pool.prompt_embeds):
            self._media.check(request)
        if diffuses(self._args.fields):
            check_diffusion(request)
        if s.seed is not None and s.temperature > 0 and not self._keeps_seeds:
            raise RequestError("seed: this SGLang samples differently each time.", param="seed")

    def _ready(self) -> _Loaded:
        if self._loaded is None or isinstance(self._failure, EngineDead):
            raise type(self._failure)(self._failure.message)
        return self._loaded

    def _meets_at(self) -> str:
        port = self._args.fields.get("disaggregation_bootstrap_port")
        return f"{self._address}:{port}" if self._pool.role == "prefill" else ""

    def _transfer(self, request: GenerateRequest) -> KvTransfer:
        """The transfer of a whole prompt: SGLang has no prefix cache where it decodes.

        SGLang doesn't say how long it took.
        """
        tokens = len(request.prompt)
        self._pulled += tokens
        return KvTransfer(tokens, math.ceil(tokens / self._pool.block_size) * self._ready().block_bytes, 0.0)


def _has_rows(request: GenerateRequest) -> bool:
    return bool(request.media) and request.media[0].media.kind == "embeds"


def _block_bytes(manager: Any, block_size: int) -> int:
    """Bytes of KV in a block, over all layers and ranks of one model."""
    model = manager.model_config
    if model.attention_arch == AttentionArch.MLA:
        width = model.kv_lora_rank + model.qk_rope_head_dim
    else:
        width = model.get_total_num_kv_heads() * (model.head_dim + model.v_head_dim)
    return int(block_size * model.num_hidden_layers * width * model.dtype.itemsize)


def _grammars() -> tuple[GrammarKind, ...]:
    """None where answers could not go on elsewhere: then clients are told, instead of given half of what they want."""
    if not is_loaded():
        log.warning("sglang_plugin_not_loaded", reason="the installed package is older, or SGLANG_PLUGINS is set")
        return ()
    return GRAMMAR_KINDS
