"""The painter over vLLM-Omni's AsyncOmni: one picture after the other. It tells nothing of steps."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from vllm_omni import AsyncOmni
from vllm_omni.inputs.data import OmniDiffusionSamplingParams
from vllm_omni.outputs import OmniRequestOutput

from app.engines.base import EngineInfo
from app.engines.omni.load import load
from app.engines.omni.stages import VERSION, omni_args
from app.errors import EngineFailed, RequestError
from app.messages.job import Painting
from app.painters.base import Painted, PaintRequest, PaintStep
from app.painters.paint_thread import PaintThread, Ticket
from app.painters.thread_painter import ThreadPainter
from app.pools.schema import Pool
from app.telemetry import logger

log = logger(__name__)


class OmniPainter(ThreadPainter):
    """Implements `app.painters.base.Painter`. A pool's `args` are AsyncOmni's, and `env`."""

    _made: AsyncOmni

    def __init__(self, pool: Pool, _address: str = "127.0.0.1") -> None:
        """Raises: SettingsError (bad arguments, or stages that make something else)."""
        self._pool, self._makes = pool, "video" if pool.painting.videos else "image"
        self._args = omni_args(pool, "video" if pool.painting.videos else "image")
        self._painting: tuple[PaintRequest, asyncio.Task[Any]] | None = None

    def configuration(self) -> Mapping[str, Any]:
        return {"environment": self._args.environment, "AsyncOmni": self._args.fields}

    async def start(self) -> EngineInfo:
        self._made = await load(self._args)
        self._loop = asyncio.get_running_loop()
        self._thread = PaintThread(self._work)
        self._thread.start()
        log.info("pipeline_loaded", stages=[stage.name for stage in self._args.stages])
        return EngineInfo(self._pool.block_size, 1, 1, 0, media=("image",), version=VERSION)

    async def paint(self, request: PaintRequest) -> AsyncGenerator[PaintStep | Painted, None]:
        try:
            async with aclosing(super().paint(request)) as outputs:
                async for one in outputs:
                    yield one
        finally:
            self._stop(request)

    async def close(self) -> None:
        self._stop(None)
        await super().close()
        await asyncio.to_thread(self._made.shutdown)

    def _check(self, request: PaintRequest) -> None:
        """Raises: RequestError."""
        if request.sources:
            raise RequestError("'image': vLLM-Omni edits no pictures here.", param="image")
        if bool(request.painting.frames) != (self._makes == "video"):
            raise RequestError(f"This model makes {self._makes}s.", param="model")

    def _work(self, tickets: list[Ticket]) -> None:
        """Paints the request of the ticket. Runs in the thread; the engine's queues belong to the loop."""
        (ticket,) = tickets
        painting = ticket.request.painting
        output = asyncio.run_coroutine_threadsafe(self._output(ticket), self._loop).result()
        if output is None:
            return
        if output.error is not None:
            raise EngineFailed("vLLM-Omni could not paint it; its log says why.")
        self._steps += painting.steps
        ticket.put(PaintStep(painting.steps, painting.steps))
        ticket.put(pixels(painting, output))

    async def _output(self, ticket: Ticket) -> OmniRequestOutput | None:
        """None: nobody wants it any more."""
        task = asyncio.ensure_future(self._run(ticket.request))
        self._painting = ticket.request, task
        try:
            if ticket.stopped or self._thread.closed:  # between its turn and now
                task.cancel()
            return await task
        except asyncio.CancelledError:
            return None
        finally:
            self._painting = None

    async def _run(self, request: PaintRequest) -> OmniRequestOutput:
        """Raises: EngineFailed."""
        params = [
            sampling_params(request.painting) if stage.paints else default
            for stage, default in zip(self._args.stages, self._made.default_sampling_params_list, strict=True)
        ]
        outputs = self._made.generate(
            prompt(request.painting),
            request_id=request.id,
            sampling_params_list=params,
            output_modalities=[self._makes],
        )
        async with aclosing(outputs):
            all_outputs = [output async for output in outputs]
        if not all_outputs:
            raise EngineFailed("vLLM-Omni ended the request without an output.")
        return all_outputs[-1]

    def _stop(self, request: PaintRequest | None) -> None:
        """Stops painting it, if it is painted; None: whatever is."""
        if self._painting is not None and (request is None or self._painting[0] is request):
            self._painting[1].cancel()


def prompt(painting: Painting) -> dict[str, str]:
    return {"prompt": painting.prompt} | ({"negative_prompt": painting.negative} if painting.negative else {})


def sampling_params(painting: Painting) -> OmniDiffusionSamplingParams:
    """Parameters of a painting. What isn't asked for is as the model has it."""
    guidance = (
        {} if painting.guidance is None else {"guidance_scale": painting.guidance, "guidance_scale_provided": True}
    )
    video = {"num_frames": painting.frames, "fps": float(painting.fps)} if painting.frames else {}
    return OmniDiffusionSamplingParams(
        height=painting.height,
        width=painting.width,
        num_inference_steps=painting.steps,
        seed=painting.seed,
        generator_device="cpu",  # so that every device draws the same noise
        num_outputs_per_prompt=1,
        **guidance,
        **video,
    )


def pixels(painting: Painting, output: OmniRequestOutput) -> Any:
    """Raises: RequestError if the model has taken another size."""
    import numpy as np

    frames = np.asarray(output.images[0] if len(output.images) == 1 else output.images)
    frames = frames[0] if frames.ndim == 5 else frames
    if frames.dtype != np.uint8:  # of videos: from 0 to 1
        frames = (frames.clip(0, 1) * 255).round().astype(np.uint8)
    height, width = frames.shape[-3:-1]
    if (width, height) != (painting.width, painting.height):
        raise RequestError(f"'size': this model makes {width}x{height} of it.", param="size")
    if painting.frames and len(frames) != painting.frames:
        raise RequestError(f"'seconds': this model makes {len(frames)} frames of it.", param="seconds")
    return frames
