"""The adapter over vLLM-Omni's AsyncOmni, for models with a stage that makes text.

To the text's stage it speaks as vLLM's adapter does, whose classes vLLM-Omni's are made of. The other stages of the
model are loaded, unless the pool's `deploy_config` leaves them out, and have nothing to do.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any

from app.engines.omni.stages import VERSION, omni_args  # sets what vLLM reads when it is imported

# isort: split
from vllm_omni import AsyncOmni

from app.engines.base import EngineInfo, EngineStats, GenerateRequest, KvEventSource, StepOutput
from app.engines.checks import check_new, check_request
from app.engines.omni.load import load
from app.engines.vllm.convert import translate
from app.engines.vllm.requests import answer
from app.engines.vllm.resumed import resumed
from app.errors import EngineFailed, RequestError, SettingsError
from app.ids import RunId
from app.pools.schema import Pool
from app.telemetry import logger
from app.tokenizing.tokenizer import load_tokenizer

log = logger(__name__)
_PLAIN = {"task": "generate", "role": "both", "peers": False, "prompt_embeds": False, "data_parallel_size": 1}


class OmniEngine:
    """Implements `app.engines.base.Engine`. A pool's `args` are AsyncOmni's, and `env`."""

    def __init__(self, pool: Pool, _address: str = "127.0.0.1") -> None:
        """Raises: SettingsError (bad arguments, or no stage that makes text)."""
        for name, plain in _PLAIN.items():
            if (value := getattr(pool, name)) != plain:
                raise SettingsError(f"{name}={value!r}: vLLM-Omni's text has {plain!r} only; engine vllm has more")
        if pool.tiers is not None:
            raise SettingsError("tiers: vLLM-Omni has none here; engine vllm has them")
        self._pool, self._args = pool, omni_args(pool, "text")
        self._tokenizer = load_tokenizer(pool.model_dir, pool.chat_template, pool.tokenizer_mode)
        self._engine: AsyncOmni | None = None
        self._live: dict[RunId, int] = {}

    def configuration(self) -> Mapping[str, Any]:
        return {"environment": self._args.environment, "AsyncOmni": self._args.fields}

    async def start(self) -> EngineInfo:
        self._engine = engine = await load(self._args)
        if idle := [stage.name for stage in self._args.stages if stage.makes != "text"]:
            log.warning(
                "stages_idle", stages=idle, hint="a deploy_config with the text's stage alone takes less memory"
            )
        config = engine.vllm_config
        return EngineInfo(
            block_size=config.cache_config.block_size,
            total_blocks=config.cache_config.num_gpu_blocks or 0,
            max_running=config.scheduler_config.max_num_seqs,
            max_model_len=config.model_config.max_model_len,
            version=VERSION,
        )

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[StepOutput, None]:
        with self._runs(request) as engine:
            if request.begun:
                outputs = resumed(engine, self._tokenizer, request, None)
            else:
                outputs = answer(engine, None, request, None)
            async with aclosing(outputs) as steps:
                async for step in steps:
                    yield step

    async def abort(self, request: RunId) -> None:
        if request in self._live and self._engine is not None:
            await self._engine.abort(request)

    def stats(self) -> EngineStats:
        return EngineStats(running=len(self._live))

    def kv_events(self) -> Mapping[int, KvEventSource]:
        """None: vLLM-Omni tells of none, and routing predicts what its cache has."""
        return {}

    async def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            for request in [*self._live]:
                await engine.abort(request)
            await asyncio.to_thread(engine.shutdown)

    @contextmanager
    def _runs(self, request: GenerateRequest) -> Iterator[AsyncOmni]:
        """Count the request while it is in the engine. Raises: XylemError only."""
        engine = self._engine
        if engine is None:
            raise EngineFailed("The engine is not running.")
        check_new(request.id, self._live)
        context_len = engine.model_config.max_model_len
        check_request(request, vocabulary_size=self._tokenizer.vocab_size, context_len=context_len)
        if request.sampling.n > 1 and not request.begun:
            raise RequestError("'n': vLLM-Omni makes one choice for a request.", param="n")
        self._live[request.id] = 1
        try:
            yield engine
        except Exception as exc:
            raise translate(exc) from exc
        finally:
            del self._live[request.id]
