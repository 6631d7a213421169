"""The result of a run for one model in one respect."""

import re
from typing import Literal

from msgspec import Struct

# What reasons say of machines without an accelerator.
_GPU = re.compile(
    r"CUDA|ROCm|not supported on CPU|[Tt]riton|cutlass|tilelang|flashinfer|'_C' object has no attribute|GPU is required"
    r"|cpu_router"
)
_LONGEST = 160


class Cell(Struct, frozen=True):
    kind: Literal["right", "wrong", "none"]  # none: there was nothing to try
    said: str = ""

    def __str__(self) -> str:
        mark = {"right": "✓", "wrong": "✗", "none": "–"}[self.kind]
        return f"{mark} {self.said}".strip()


def right(said: str = "") -> Cell:
    return Cell("right", said)


def untried(why: str) -> Cell:
    return Cell("none", why)


def wrong(why: str) -> Cell:
    """A cell with the last line of `why` that says something."""
    lines = [line.strip() for line in why.splitlines() if line.strip()]
    short = lines[-1] if lines else "?"
    short = short if len(short) <= _LONGEST else f"{short[:_LONGEST]}…"
    return Cell("wrong", f"needs a GPU: {short}" if _GPU.search(why) else short)
