"""The interface of an engine that paints pictures or videos, instead of `base.Engine`'s. Without torch."""

from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

from msgspec import Struct

from app.engines.base import EngineInfo, EngineStats, KvEventSource, MediaInput
from app.ids import RunId
from app.messages.job import Painting


class PaintRequest(Struct, frozen=True):
    id: RunId
    painting: Painting
    priority: int = 0  # lower is sooner
    sources: tuple[MediaInput, ...] = ()  # pictures to begin from
    mask: MediaInput | None = None  # as large as the first source: white where it is edited, else black


class PaintStep(Struct, frozen=True):
    """A step of denoising is over."""

    step: int  # how many are over
    of: int
    preview: bytes = b""  # a file: the picture as far as it is; at some steps, if previews were asked for


class Painted(Struct, frozen=True):
    file: bytes  # in the painting's format


class Painter(Protocol):
    """One model, loaded. All methods run on the event loop that called `start`."""

    async def start(self) -> EngineInfo:
        """Load until the first picture can be painted. Raises: EngineFailed, SettingsError (bad arguments)."""

    def paint(self, request: PaintRequest) -> AsyncGenerator[PaintStep | Painted, None]:
        """Yield the steps, and at last the file. Closing the iterator ends the painting within a step.

        The same request gives the same bytes, whatever else the engine paints meanwhile. Raises: RequestError (the
        model can't do it), EngineFailed.
        """

    def stats(self) -> EngineStats:
        """`paint_steps` and how many requests it has."""

    def kv_events(self) -> Mapping[int, KvEventSource]:
        """None."""

    async def close(self) -> None:
        """Free everything. Requests in flight end with EngineFailed."""
