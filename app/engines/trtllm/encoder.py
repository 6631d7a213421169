"""TensorRT-LLM's MultimodalEncoder: encodes pictures for other workers, without a language model."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from app.engines.log_level import log_level

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # models are directories here, nothing is looked up
os.environ.setdefault("TLLM_LOG_LEVEL", log_level())  # TensorRT-LLM reads it when it is imported

import structlog
import tensorrt_llm
from tensorrt_llm._torch.shared_tensor import SharedTensorContainer
from tensorrt_llm.llmapi.mm_encoder import MultimodalEncoder

from app.engines.base import (
    Embedding,
    EngineInfo,
    EngineStats,
    GenerateRequest,
    KvEventSource,
    PictureRequest,
    StepOutput,
)
from app.engines.pool_args import set_environment, take_environment
from app.engines.trtllm.convert import translate
from app.engines.trtllm.media import embedding, model_config, picture, picture_token
from app.errors import EngineFailed, SettingsError
from app.ids import RunId
from app.pools.schema import Pool

_OWN = ("model", "max_batch_size", "max_seq_len", "max_input_len")  # which the pool says
_INSIDE = {"Llama4ForConditionalGeneration"}  # encode pictures inside the language model only

log = structlog.get_logger(__name__)


class TrtllmEncoder:
    """Implements `app.engines.base.Engine`, which generates nothing, and `PictureEncoder`.

    A pool's `args` are those of MultimodalEncoder, and `env`.
    """

    def __init__(self, pool: Pool) -> None:
        """Raises: SettingsError (bad arguments)."""
        config = model_config(pool.model_dir)
        kinds = _INSIDE.intersection(config.get("architectures") or ())
        token = picture_token(config)
        if token is None or kinds:
            what = ", ".join(kinds) or "config.json"
            raise SettingsError(f"role=encode: TensorRT-LLM can't encode pictures of this model apart ({what})")
        self._pool, self._token = pool, token
        arguments = dict(pool.args)
        self._environment = take_environment(arguments)
        for name in _OWN:
            if name in arguments:
                raise SettingsError(f"args.{name}={arguments[name]!r}: the pool's own settings say this")
        self._fields = arguments | {"model": str(pool.model_dir), "max_batch_size": pool.max_running}
        self._encoder: MultimodalEncoder | None = None  # set by start
        self._running = self._encoded = 0

    def configuration(self) -> dict[str, Any]:
        return {"environment": self._environment, "MultimodalEncoder": self._fields}

    async def start(self) -> EngineInfo:
        set_environment(self._environment)
        began = time.monotonic()
        self._encoder = await asyncio.to_thread(self._load)
        log.info("tensorrt_llm loaded", action="engine_loaded", seconds=round(time.monotonic() - began, 1))
        pool = self._pool
        return EngineInfo(
            pool.block_size,
            1,
            pool.max_running,
            pool.context_len,
            media=("image",),
            computes=False,
            version=str(getattr(tensorrt_llm, "__version__", "")),
        )

    async def encode_picture(self, request: PictureRequest) -> Embedding:
        encoder = self._encoder
        if encoder is None:
            raise EngineFailed("The engine is not running.")
        inputs = {
            "prompt_token_ids": [self._token],
            "multi_modal_data": {"image": [picture(request.picture)]},
            "mm_processor_kwargs": {},
        }
        self._running += 1
        try:
            result = encoder.generate_async(inputs)
            try:
                await result.aresult()
            except asyncio.CancelledError:
                result.abort()
                raise
            params = result.disaggregated_params
            handles = params.multimodal_embedding_handles if params is not None else None
            if not handles:
                raise EngineFailed("TensorRT-LLM gave no encoded picture.")
            self._encoded += 1
            return await asyncio.to_thread(_taken, handles[0])
        except Exception as exc:
            raise translate(exc) from exc
        finally:
            self._running -= 1

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[StepOutput, None]:
        raise EngineFailed(f"This engine encodes pictures only ({request.id}).")
        yield

    async def abort(self, request: RunId) -> None:
        """Nothing is generated."""

    def stats(self) -> EngineStats:
        return EngineStats(running=self._running)

    def kv_events(self) -> Mapping[int, KvEventSource]:
        return {}

    async def close(self) -> None:
        encoder, self._encoder = self._encoder, None
        if encoder is not None:
            await asyncio.to_thread(encoder.shutdown)

    def _load(self) -> MultimodalEncoder:
        """Raises: SettingsError, EngineFailed."""
        try:
            return MultimodalEncoder(**self._fields)
        except (ValueError, TypeError) as exc:  # pydantic's errors are ValueErrors
            raise SettingsError(f"TensorRT-LLM refuses these engine arguments: {exc}") from exc
        except Exception as exc:
            raise EngineFailed(f"TensorRT-LLM did not start: {exc!r}") from exc


def _taken(handle: dict[str, Any]) -> Embedding:
    """A handle is good for one reading: the engine frees the memory then. Raises: EngineFailed."""
    return embedding(SharedTensorContainer.from_dict(handle).get_local_view().cpu())
