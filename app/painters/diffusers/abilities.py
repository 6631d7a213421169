"""Abilities of pipelines of diffusers, by the parameters of their call."""

import inspect
from typing import Any

from msgspec import Struct

from app.errors import RequestError
from app.messages.job import Painting


class Abilities(Struct, frozen=True):
    takes: frozenset[str]  # names of parameters

    @property
    def videos(self) -> bool:
        return "num_frames" in self.takes

    def check(self, painting: Painting) -> None:
        """Raises: RequestError."""
        if painting.negative and ("negative_prompt" not in self.takes or "true_cfg_scale" in self.takes):
            raise RequestError("'negative_prompt': this model takes none.", param="negative_prompt")
        if bool(painting.frames) != self.videos:
            raise RequestError(f"This model makes {'videos' if self.videos else 'pictures'}.", param="model")


def abilities_of(pipeline: Any) -> Abilities:
    """Abilities of a pipeline, or of its class."""
    return Abilities(frozenset(inspect.signature(pipeline.__call__).parameters))
