"""The painter over SGLang's DiffGenerator: one picture after the other."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.engines.base import EngineInfo
from app.engines.pool_args import set_environment
from app.errors import EngineFailed, RequestError, SettingsError
from app.messages.job import Painting
from app.painters.base import Painted, PaintRequest, PaintStep
from app.painters.diffusers.abilities import Abilities, abilities_of
from app.painters.paint_thread import PaintThread, Ticket
from app.painters.sglang.hooks import is_loaded
from app.painters.thread_painter import ThreadPainter
from app.pools.schema import Pool
from app.telemetry import logger

if TYPE_CHECKING:
    from app.painters.sglang.generator import Generator

log = logger(__name__)


class SglangPainter(ThreadPainter):
    """Implements `app.painters.base.Painter`. It shows no unfinished pictures."""

    _generator: "Generator"
    _abilities: Abilities

    def __init__(self, pool: Pool, _address: str = "127.0.0.1") -> None:
        """Raises: SettingsError (unknown or bad arguments), EngineFailed (it is not installed)."""
        try:
            from app.painters.sglang.args import engine_args
        except ImportError as exc:  # SGLang without the packages of its extra `diffusion`
            raise EngineFailed(f"SGLang's diffusion engine is not installed: {exc}") from exc
        self._pool, self._args = pool, engine_args(pool)
        self._stops = is_loaded() and self._args.fields["num_gpus"] == 1  # one rank alone can't leave the others
        self._names = count()
        self._painting: tuple[str, Ticket] | None = None
        self._told = 0

    def configuration(self) -> Mapping[str, Any]:
        return {"environment": self._args.environment, "ServerArgs": self._args.fields}

    async def start(self) -> EngineInfo:
        set_environment(self._args.environment)
        await asyncio.to_thread(self._load)
        self._thread = PaintThread(self._work)
        self._thread.start()
        if not self._stops:
            log.warning("painter_cannot_stop", reason="several GPUs" if is_loaded() else "its plugin is not installed")
        return EngineInfo(self._pool.block_size, 1, 1, 0, media=("image",), version=version("sglang"))

    async def paint(self, request: PaintRequest) -> AsyncGenerator[PaintStep | Painted, None]:
        has_ended = False
        try:
            async with aclosing(super().paint(request)) as outputs:
                async for one in outputs:
                    has_ended = isinstance(one, Painted)
                    yield one
        finally:
            if not has_ended:
                self._stop(request)

    async def close(self) -> None:
        self._stop(None)
        await super().close()
        await asyncio.to_thread(self._generator.close)

    def _load(self) -> None:
        """Raises: EngineFailed, SettingsError."""
        self._abilities = _abilities(self._pool.model_dir)
        if self._abilities.videos != self._pool.painting.videos:
            raise SettingsError(f"painting.videos: the model says {str(self._abilities.videos).lower()}")
        try:
            from app.painters.sglang.generator import Generator
        except ImportError as exc:  # it imports its packages one by one
            raise EngineFailed(f"SGLang's diffusion engine is not installed: {exc}") from exc
        self._generator = Generator(self._args, self._on_step)

    def _check(self, request: PaintRequest) -> None:
        """Raises: RequestError."""
        self._abilities.check(request.painting)
        if request.mask is not None:
            raise RequestError("'mask': SGLang edits whole pictures only.", param="mask")
        if request.sources:
            raise RequestError("'image': this model edits no pictures with SGLang.", param="image")

    def _work(self, tickets: list[Ticket]) -> None:
        """Paints the request of the ticket. Runs in the thread."""
        (ticket,) = tickets
        name = f"painting-{next(self._names)}"
        self._told, self._painting = 0, (name, ticket)
        if ticket.stopped or self._thread.closed:  # between its turn and now
            return
        painting = ticket.request.painting
        try:
            frames = self._generator.paint(name, asked(painting))
        except EngineFailed:
            if ticket.stopped:
                return
            raise
        finally:
            self._painting = None
        ticket.put(_pixels(painting, frames))

    def _on_step(self, name: str, step: int, of: int) -> None:
        """Tells the painting's ticket of a step. Runs in SGLang's thread."""
        painting = self._painting
        if painting is not None and painting[0] == name:
            for number in range(self._told + 1, step + 1):  # it tells of whole percents only
                painting[1].put(PaintStep(number, of))
            self._steps += step - self._told
            self._told = step

    def _stop(self, request: PaintRequest | None) -> None:
        """Stop painting it, if it is painted; None: whatever is."""
        painting = self._painting
        if self._stops and painting is not None and (request is None or painting[1].request is request):
            self._generator.stop(painting[0])


def asked(painting: Painting) -> dict[str, Any]:
    """SGLang's SamplingParams."""
    arguments: dict[str, Any] = {
        "prompt": painting.prompt,
        "width": painting.width,
        "height": painting.height,
        "num_inference_steps": painting.steps,
        "seed": painting.seed,
        "generator_device": "cpu",  # so that every device draws the same noise
        "save_output": False,
        "return_file_paths_only": False,
        "return_frames": True,
        "suppress_logs": True,
    }
    if painting.negative:
        arguments["negative_prompt"] = painting.negative
    if painting.guidance is not None:
        arguments["guidance_scale"] = painting.guidance
    if painting.frames:
        arguments |= {"num_frames": painting.frames, "fps": painting.fps}
    return arguments


def _pixels(painting: Painting, frames: Any) -> Any:
    """Raises: RequestError if SGLang has taken another size, as some of its pipelines do."""
    import numpy as np

    pixels = np.asarray(frames)
    expected_shape = max(1, painting.frames), painting.height, painting.width, 3
    if pixels.shape != expected_shape:
        count_, height, width, _three = pixels.shape
        param = "seconds" if count_ != expected_shape[0] else "size"
        raise RequestError(f"'{param}': SGLang makes {count_} of {width}x{height} of it.", param=param)
    return pixels if painting.frames else pixels[0]


def _abilities(path: Path) -> Abilities:
    """Abilities of the model's pipeline, by its class in diffusers. Raises: EngineFailed."""
    import diffusers

    try:
        name = json.loads((path / "model_index.json").read_text())["_class_name"]
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise EngineFailed(f"path={path}: its model_index.json can't be read ({exc!r})") from exc
    pipeline = getattr(diffusers, str(name), None)
    if pipeline is None:
        raise EngineFailed(f"path={path}: diffusers has no pipeline {name!r}, so nobody knows what it takes")
    return abilities_of(pipeline)
