"""vLLM, in this process and the ones it starts, on whatever device it finds."""

import os

# Read when huggingface_hub is imported: models are directories here, nothing is looked up.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import asyncio
import dataclasses
import tempfile
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, cast

import structlog
from pydantic import ValidationError
from vllm import SamplingParams
from vllm.config import KVEventsConfig, KVTransferConfig, VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import GracefulHTTPError, VLLMClientError
from vllm.inputs import tokens_input
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

from app.engines.base import EngineInfo, EngineStats, GenerateRequest, KvEventSource, StepOutput
from app.errors import EngineFailed, PromptTooLong, RequestError, Saturated, SettingsError, XylemError
from app.ids import RequestId
from app.messages import FinishReason, Sampling, TokenLogprob
from app.settings import Pool

_CPU_KV_BYTES = 2 * 2**30
_ENVIRONMENT = {
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a worker has threads, which a fork would leave half alive
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}

log = structlog.get_logger(__name__)


class VllmEngine:
    """Implements `app.engines.base.Engine`. The pool's `args` are fields of vLLM's AsyncEngineArgs, and
    `env`: environment variables that are set unless they are set already.
    """

    def __init__(self, pool: Pool) -> None:
        """Raises: SettingsError (unknown arguments)."""
        self._env, self._args = _engine_args(pool)
        self._engine: AsyncLLM | None = None  # set by start
        self._stats = _StatLogger()
        self._live: dict[RequestId, int] = {}  # choices of each request in flight

    async def start(self) -> EngineInfo:
        for name, value in self._env.items():
            os.environ.setdefault(name, value)
        began = time.monotonic()
        self._engine = engine = await asyncio.to_thread(self._load)
        await engine.get_supported_tasks()  # starts listening to the engine's processes on this loop
        config = engine.vllm_config
        info = EngineInfo(
            block_size=config.cache_config.block_size,
            total_blocks=config.cache_config.num_gpu_blocks,
            max_running=config.scheduler_config.max_num_seqs,
            max_model_len=config.model_config.max_model_len,
        )
        log.info("vllm loaded", action="engine_loaded", seconds=round(time.monotonic() - began, 1), info=str(info))
        return info

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[StepOutput, None]:
        engine = self._running_engine()
        if request.id in self._live:
            raise RequestError(f"A request with the id {request.id} is running already.")
        context_len = engine.model_config.max_model_len
        if len(request.prompt) >= context_len:
            raise PromptTooLong(
                f"The prompt has {len(request.prompt)} tokens; "
                f"with an answer of at least one token the model takes {context_len}."
            )
        self._live[request.id] = request.sampling.n
        try:
            outputs = engine.generate(
                tokens_input(request.prompt), _sampling_params(request.sampling), request.id, priority=request.priority
            )
            async for step in _steps(outputs, request):
                yield step
        except XylemError:
            raise
        except Exception as exc:
            raise _translate(exc) from exc
        finally:
            del self._live[request.id]

    async def abort(self, request: RequestId) -> None:
        if request in self._live:
            await self._running_engine().abort(request)

    def stats(self) -> EngineStats:
        # vLLM reports after a step that made output, so nothing tells of a last request's abort.
        scheduled = min(self._stats.running, live) if (live := sum(self._live.values())) else 0
        blocks = self._engine.vllm_config.cache_config.num_gpu_blocks if self._engine else 0
        return EngineStats(
            running=scheduled,
            waiting=live - scheduled,
            used_blocks=round(self._stats.kv_usage * blocks) if live else 0,
            prefill_tokens=self._stats.prefill_tokens,
        )

    def kv_events(self) -> KvEventSource | None:
        sources = self._running_engine().get_kv_event_sources()
        if 0 not in sources:
            return None
        config = sources[0]
        return KvEventSource(
            endpoint=_connectable(config.endpoint),
            replay_endpoint=_connectable(config.replay_endpoint),
            topic=config.topic,
        )

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, and nothing done, while a request holds blocks."""
        return bool(await self._running_engine().reset_prefix_cache())

    async def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.abort(list(self._live))
            await asyncio.to_thread(engine.shutdown)

    def _load(self) -> AsyncLLM:
        try:
            args = AsyncEngineArgs(**self._args)
            config = args.create_engine_config()
        except ValidationError as exc:
            problems = (f"args.{'.'.join(map(str, e['loc']))}={e['input']!r}: {e['msg']}" for e in exc.errors())
            raise SettingsError("; ".join(problems)) from exc
        except (ValueError, TypeError, OSError, ImportError, NotImplementedError) as exc:
            raise SettingsError(f"vLLM refuses these engine arguments: {exc}") from exc
        try:
            return cast(
                AsyncLLM, AsyncLLM.from_vllm_config(config, disable_log_stats=True, stat_loggers=[self._stats.make])
            )
        except Exception as exc:
            raise EngineFailed(f"vLLM did not start: {exc}") from exc

    def _running_engine(self) -> AsyncLLM:
        if self._engine is None:
            raise EngineFailed("The engine is not running.")
        return self._engine


class _StatLogger(StatLoggerBase):  # type: ignore[misc]  # vLLM has no types here
    """The last figures of vLLM's scheduler, and one sum."""

    def __init__(self) -> None:
        self.running = 0
        self.kv_usage = 0.0  # share of the blocks that requests hold
        self.prefill_tokens = 0

    def make(self, config: VllmConfig, engine_index: int) -> "_StatLogger":
        return self

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: object = None,
        engine_idx: int = 0,
    ) -> None:
        if scheduler_stats is not None:
            self.running = scheduler_stats.num_running_reqs
            self.kv_usage = scheduler_stats.kv_cache_usage
        if iteration_stats is not None:
            self.prefill_tokens += iteration_stats.prompt_token_stats.computed

    def log_engine_initialized(self) -> None:
        """Nothing to say."""


def _engine_args(pool: Pool) -> tuple[dict[str, str], dict[str, Any]]:
    """The environment and vLLM's arguments: what the pool says, what its `args` say, our defaults."""
    given = dict(pool.args)
    env = given.pop("env", {})
    if not isinstance(env, dict) or not all(isinstance(v, str) for v in (*env, *env.values())):
        raise SettingsError(f"args.env={env!r}: must map names to strings")
    unknown = given.keys() - {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    if unknown:
        raise SettingsError("; ".join(f"args.{key}={given[key]!r}: vLLM has no such argument" for key in sorted(unknown)))
    fixed = {
        "model": str(pool.model_dir),
        "served_model_name": pool.model,
        "block_size": pool.block_size,
        "max_num_seqs": pool.max_running,
        "max_model_len": pool.context_len,
    }
    for key in fixed.keys() & given.keys():
        raise SettingsError(f"args.{key}={given[key]!r}: the pool's own settings say this")
    defaults: dict[str, Any] = {"scheduling_policy": "priority", "enable_prefix_caching": True}
    if current_platform.is_cpu():
        # float32 is the faster one wherever the CPU lacks AVX512_BF16; compiling takes minutes.
        defaults |= {"dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": _CPU_KV_BYTES}
    for key, make in (("kv_events_config", _kv_events_config), ("kv_transfer_config", KVTransferConfig)):
        if isinstance(given.get(key), dict):
            try:
                given[key] = make(**given[key])
            except (ValidationError, TypeError) as exc:
                raise SettingsError(f"args.{key}={given[key]!r}: {exc}") from exc
    return {**_ENVIRONMENT, **env}, {**defaults, **given, **fixed}


def _kv_events_config(**given: Any) -> KVEventsConfig:
    """Published on this host unless the pool says where; replay is always on, since our index relies on it."""
    folder = tempfile.mkdtemp(prefix="xylem-kv-")
    defaults = {"endpoint": f"ipc://{folder}/events", "replay_endpoint": f"ipc://{folder}/replay"}
    return KVEventsConfig(**{"enable_kv_cache_events": True, "publisher": "zmq", **defaults, **given})


def _connectable(endpoint: str) -> str:
    return endpoint.replace("//*:", "//127.0.0.1:").replace("//0.0.0.0:", "//127.0.0.1:")


def _sampling_params(s: Sampling) -> SamplingParams:
    """Raises: VLLMClientError, ValueError."""
    return SamplingParams(
        n=s.n,
        max_tokens=s.max_tokens,
        min_tokens=s.min_tokens,
        temperature=s.temperature,
        top_p=s.top_p,
        top_k=s.top_k,
        min_p=s.min_p,
        presence_penalty=s.presence_penalty,
        frequency_penalty=s.frequency_penalty,
        repetition_penalty=s.repetition_penalty,
        seed=s.seed,
        stop=list(s.stop),
        stop_token_ids=list(s.stop_token_ids),
        include_stop_str_in_output=s.include_stop,
        ignore_eos=s.ignore_eos,
        logprobs=s.logprobs,
        prompt_logprobs=s.prompt_logprobs,
        logit_bias=s.logit_bias,
        output_kind=RequestOutputKind.DELTA,
        skip_clone=True,  # made for this request, so vLLM may change it
    )


async def _steps(outputs: AsyncGenerator[RequestOutput, None], request: GenerateRequest) -> AsyncGenerator[StepOutput, None]:
    """Raises: what vLLM raises, EngineFailed. Closing it closes `outputs`, which aborts the request in vLLM."""
    sampling = request.sampling
    cached: int | None = None  # of the choice that came first: the others find what it computed
    try:
        async for out in outputs:
            if cached is None:
                cached = out.num_cached_tokens or 0
            prompt_logprobs = None
            if out.prompt_logprobs is not None:
                prompt_logprobs = _prompt_logprobs(request.prompt, out.prompt_logprobs, sampling.prompt_logprobs or 0)
            for choice in out.outputs:
                yield _step(choice, sampling, cached, prompt_logprobs)
    finally:
        await outputs.aclose()


def _step(
    out: CompletionOutput, sampling: Sampling, cached: int, prompt_logprobs: list[TokenLogprob | None] | None
) -> StepOutput:
    tokens = list(out.token_ids)
    logprobs = None
    if sampling.logprobs is not None and out.logprobs is not None:
        pairs = zip(tokens, out.logprobs, strict=True)
        logprobs = [_token_logprob(token, found, sampling.logprobs) for token, found in pairs]
    finish = None if out.finish_reason is None else _finish_reason(out.finish_reason)
    return StepOutput(out.text, tokens, out.index, finish, out.stop_reason, logprobs, cached, prompt_logprobs)


def _finish_reason(reason: str) -> FinishReason:
    if reason in ("stop", "length", "abort"):
        return cast(FinishReason, reason)
    raise EngineFailed(f"vLLM ended the request with {reason!r}.")


def _token_logprob(token: int, found: Mapping[int, Logprob], top: int) -> TokenLogprob:
    ranked = sorted(found.items(), key=lambda item: item[1].rank)
    likeliest = [(entry.decoded_token or "", other, entry.logprob) for other, entry in ranked[:top]]
    return TokenLogprob(found[token].decoded_token or "", token, found[token].logprob, likeliest)


def _prompt_logprobs(
    prompt: Sequence[int], found: Sequence[Mapping[int, Logprob] | None], top: int
) -> list[TokenLogprob | None]:
    pairs = zip(prompt, found, strict=True)
    return [None if entry is None else _token_logprob(token, entry, top) for token, entry in pairs]


def _translate(exc: Exception) -> XylemError:
    """vLLM wraps what its own checks didn't foresee; a ValueError inside is still about the request."""
    match exc:
        case EngineDeadError():
            return EngineFailed(f"vLLM's engine process died: {exc}")
        case GracefulHTTPError():
            return Saturated(exc.message)
        case VLLMClientError() | ValueError():
            return RequestError(str(exc))
        case EngineGenerateError() if isinstance(exc.__cause__, ValueError | VLLMClientError):
            return RequestError(str(exc.__cause__))
        case _:
            return EngineFailed(f"vLLM failed: {exc.__cause__ or exc!r}")
