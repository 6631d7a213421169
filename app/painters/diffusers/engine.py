"""The painter over a pipeline of diffusers."""

import asyncio
from collections.abc import Hashable, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from app.engines.base import EngineInfo
from app.engines.pool_args import parsed_args
from app.errors import EngineFailed, SettingsError
from app.messages.job import Painting
from app.painters.base import PaintRequest, PaintStep
from app.painters.diffusers.args import DiffusersArgs
from app.painters.paint_thread import PaintThread, Ticket
from app.painters.painted_file import painted_file
from app.painters.previews import preview_steps
from app.painters.thread_painter import ThreadPainter
from app.pools.schema import Pool
from app.telemetry import logger

if TYPE_CHECKING:  # it imports torch
    from app.painters.diffusers.pipeline import Pipeline

log = logger(__name__)


class DiffusersPainter(ThreadPainter):
    """Implements `app.painters.base.Painter`."""

    _pipeline: "Pipeline"

    def __init__(self, pool: Pool, _address: str = "127.0.0.1") -> None:
        """Raises: SettingsError (unknown or bad arguments)."""
        self._pool, self._args = pool, parsed_args(DiffusersArgs, pool.args)
        self._same: dict[tuple[Hashable, int], bool] = {}  # by shape and size, whether a batch changes nothing

    def configuration(self) -> Mapping[str, Any]:
        return self._args.model_dump()

    async def start(self) -> EngineInfo:
        most = await asyncio.to_thread(self._load)
        self._thread = PaintThread(self._work, shape, most, self._together)
        self._thread.start()
        log.info("pipeline_loaded", pipeline=self._pipeline.name, batch=most)
        return EngineInfo(self._pool.block_size, 1, most, 0, media=("image",), version=version("diffusers"))

    def _check(self, request: PaintRequest) -> None:
        self._pipeline.check(request.painting)

    def _load(self) -> int:
        """Loads the pipeline. Returns how many pictures may be painted together.

        Raises: EngineFailed, SettingsError.
        """
        try:
            from app.painters.diffusers.pipeline import Pipeline
        except ImportError as exc:
            raise EngineFailed(f"diffusers is not installed: {exc}") from exc
        self._pipeline = Pipeline(self._pool.model_dir, self._args)
        if self._pipeline.videos != self._pool.painting.videos:
            raise SettingsError(f"painting.videos: {self._pipeline.name} says {str(self._pipeline.videos).lower()}")
        return self._args.batch if self._pipeline.may_batch else 1

    def _together(self, requests: list[PaintRequest]) -> int:
        """Number of requests of one shape that are painted together without a change of any byte.

        Runs in the thread.
        """
        for count in range(len(requests), 1, -1):
            key = shape(requests[0]), count
            if key not in self._same:
                self._same[key] = self._pipeline.is_same([request.painting for request in requests[:count]])
                log.info("batch_tried", size=count, same=self._same[key])
            if self._same[key]:
                return count
        return 1

    def _work(self, tickets: list[Ticket]) -> None:
        """Paints the requests of these tickets. Runs in the thread."""
        from app.painters.diffusers.pipeline import Stopped

        paintings = [ticket.request.painting for ticket in tickets]
        steps_with_preview = [preview_steps(painting) for painting in paintings]

        def on_step(step: int, latents: Any) -> bool:
            self._steps += len(tickets)
            for i, (ticket, painting) in enumerate(zip(tickets, paintings, strict=True)):
                if ticket.stopped:
                    continue
                preview = self._preview(painting, latents[i : i + 1]) if step in steps_with_preview[i] else b""
                ticket.put(PaintStep(step, painting.steps, preview))
            return not self._thread.closed and not all(ticket.stopped for ticket in tickets)

        first = tickets[0].request
        try:
            results = (
                [self._pipeline.edit(first, on_step)] if first.sources else self._pipeline.paint(paintings, on_step)
            )
        except Stopped:
            return
        for ticket, pixels in zip(tickets, results, strict=True):
            ticket.put(pixels)

    def _preview(self, painting: Painting, latents: Any) -> bytes:
        pixels = self._pipeline.preview(painting, latents)
        return b"" if pixels is None else painted_file(painting, pixels)


def shape(request: PaintRequest) -> Hashable:
    """Requests of one shape may be painted together. A negative prompt, even an empty one, is a part of the call."""
    p = request.painting
    if request.sources:
        return request.id
    return p.width, p.height, p.steps, p.guidance, p.frames, bool(p.negative)
