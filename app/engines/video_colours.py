"""A function that transformers' processors of videos call, and torchvision for CPUs (decision 0082) does not have."""

from importlib.util import find_spec
from typing import Any


def complete_torchvision() -> None:
    """Adds it where it is missing."""
    if find_spec("torchvision") is None:
        return
    from torchvision.transforms.v2 import functional  # type: ignore[import-untyped]  # the engine has imported it

    if not hasattr(functional, "grayscale_to_rgb"):
        functional.grayscale_to_rgb = coloured


def coloured(frames: Any) -> Any:
    """`frames`: of one colour or three, in the third dimension from the last."""
    return frames if frames.shape[-3] > 1 else frames.repeat_interleave(3, -3)
