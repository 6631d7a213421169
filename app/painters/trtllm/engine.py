"""The painter over TensorRT-LLM's VisualGen: one picture after the other.

VisualGen tells nothing of steps, and can end no request: one that nobody wants any more is painted to its end.
"""

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from app.engines.log_level import log_level

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # models are folders here, nothing is looked up
os.environ.setdefault("TLLM_LOG_LEVEL", log_level())  # TensorRT-LLM reads it when it is imported

import tensorrt_llm
from tensorrt_llm.visual_gen import VisualGen, VisualGenParams
from tensorrt_llm.visual_gen.args import (
    AttentionConfig,
    CacheDiTConfig,
    CompilationConfig,
    CpuOffloadConfig,
    CudaGraphConfig,
    ParallelConfig,
    TeaCacheConfig,
    TorchCompileConfig,
    VisualGenArgs,
)

from app.engines.base import EngineInfo
from app.engines.pool_args import set_environment
from app.errors import EngineFailed, RequestError, SettingsError
from app.messages.job import Painting
from app.painters.base import PaintRequest, PaintStep
from app.painters.paint_thread import PaintThread, Ticket
from app.painters.thread_painter import ThreadPainter
from app.painters.trtllm.args import visual_args
from app.pools.schema import Pool
from app.telemetry import logger

_CONFIGS = {
    "attention_config": AttentionConfig,
    "compilation_config": CompilationConfig,
    "cpu_offload_config": CpuOffloadConfig,
    "cuda_graph_config": CudaGraphConfig,
    "parallel_config": ParallelConfig,
    "torch_compile_config": TorchCompileConfig,
}
_CACHES = {"teacache": TeaCacheConfig, "cache_dit": CacheDiTConfig}

log = logger(__name__)


class TrtllmPainter(ThreadPainter):
    """Implements `app.painters.base.Painter`. A pool's `args` are fields of VisualGenArgs, and `env`."""

    _made: VisualGen

    def __init__(self, pool: Pool, _address: str = "127.0.0.1") -> None:
        """Raises: SettingsError (bad arguments)."""
        self._pool, self._args = pool, visual_args(pool)

    def configuration(self) -> Mapping[str, Any]:
        args = self._args
        return {"environment": args.environment, "pipeline": args.pipeline, "VisualGenArgs": args.fields}

    async def start(self) -> EngineInfo:
        set_environment(self._args.environment)
        self._made = await asyncio.to_thread(self._load)
        self._thread = PaintThread(self._work)
        self._thread.start()
        log.info("pipeline_loaded", pipeline=self._args.pipeline, gpus=self._args.gpus)
        engine = str(getattr(tensorrt_llm, "__version__", ""))
        return EngineInfo(self._pool.block_size, 1, 1, 0, media=("image",), version=engine)

    def _check(self, request: PaintRequest) -> None:
        if request.sources:
            raise RequestError("'image': TensorRT-LLM edits no pictures here.", param="image")

    async def close(self) -> None:
        await super().close()
        await asyncio.to_thread(self._made.shutdown)

    def _load(self) -> VisualGen:
        """Raises: SettingsError, EngineFailed."""
        fields = dict(self._args.fields)
        try:
            for name, make in _CONFIGS.items():
                if fields.get(name) is not None:
                    fields[name] = make(**fields[name])
            if fields.get("cache_config") is not None:
                fields["cache_config"] = _CACHES[fields["cache_config"]["cache_backend"]](**fields["cache_config"])
            return VisualGen(model=fields["model"], args=VisualGenArgs(**fields))
        except (ValueError, TypeError) as exc:  # pydantic's errors are ValueErrors
            raise SettingsError(f"TensorRT-LLM refuses these engine arguments: {exc}") from exc
        except Exception as exc:
            raise EngineFailed(f"TensorRT-LLM did not start: {exc!r}") from exc

    def _work(self, tickets: list[Ticket]) -> None:
        """Paints the request of the ticket. Runs in the thread."""
        (ticket,) = tickets
        painting = ticket.request.painting
        try:
            result = self._made.generate(inputs=painting.prompt, params=_params(painting))
        except (ValueError, NotImplementedError) as exc:  # its own check of the parameters
            raise RequestError(f"TensorRT-LLM refuses it: {exc}") from exc
        if result.error is not None:
            raise EngineFailed("TensorRT-LLM could not paint it; its log says why.")
        pixels = _pixels(painting, result.video if painting.frames else result.image)
        self._steps += painting.steps
        ticket.put(PaintStep(painting.steps, painting.steps))
        ticket.put(pixels)


def _params(painting: Painting) -> VisualGenParams:
    """Parameters of a painting. What isn't asked for is as the model has it."""
    video = {"num_frames": painting.frames, "frame_rate": float(painting.fps)} if painting.frames else {}
    return VisualGenParams(
        height=painting.height,
        width=painting.width,
        num_inference_steps=painting.steps,
        guidance_scale=painting.guidance,
        seed=painting.seed,
        negative_prompt=painting.negative or None,
        **video,
    )


def _pixels(painting: Painting, result: Any) -> Any:
    """The first one of the batch. Raises: RequestError."""
    if result is None:
        what = "pictures" if painting.frames else "videos"
        raise RequestError(f"This model makes {what}.", param="model")
    pixels = result[0].cpu().numpy()
    height, width = pixels.shape[-3:-1]
    if (width, height) != (painting.width, painting.height):
        raise RequestError(f"'size': TensorRT-LLM makes {width}x{height} of it.", param="size")
    if painting.frames and len(pixels) != painting.frames:
        raise RequestError(f"'seconds': TensorRT-LLM makes {len(pixels)} frames of it.", param="seconds")
    return pixels
