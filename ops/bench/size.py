"""The size of a benchmark: everything, less with `QUICK=1`, or next to nothing with `SMOKE=1` or `SMOKE=all`.

The smallest sizes show that a benchmark still works. Their figures say nothing, not even where a name has a number.
"""

import os
from enum import Enum
from importlib.util import find_spec
from typing import TypeVar

from ops.bench.processes import Unavailable

LEFT_OUT = "the smallest size is without "  # how each reason begins that `needs` and `leaves` give

T = TypeVar("T")


class Size(Enum):
    FULL = "full"
    QUICK = "quick"
    SMOKE = "smoke"  # without real engines, other systems, and what takes minutes however small
    SMOKE_ALL = "smoke with everything"

    @classmethod
    def asked(cls, quick: bool = bool(os.environ.get("QUICK"))) -> "Size":
        """The size that the variable SMOKE says, else `quick`. Raises: SystemExit if SMOKE is neither 1 nor all."""
        smallest = {"": None, "0": None, "1": cls.SMOKE, "all": cls.SMOKE_ALL}
        if (smoke := os.environ.get("SMOKE", "")) not in smallest:
            raise SystemExit(f"bench: SMOKE={smoke} is neither 1 nor all")
        return smallest[smoke] or (cls.QUICK if quick else cls.FULL)

    @property
    def smallest(self) -> bool:
        return self in (Size.SMOKE, Size.SMOKE_ALL)

    def of(self, full: T, quick: T, smoke: T) -> T:
        return full if self is Size.FULL else quick if self is Size.QUICK else smoke

    def leaves(self, what: str) -> None:
        """Says what another command has in small. Raises: Unavailable in both smallest sizes."""
        if self.smallest:
            raise Unavailable(f"{LEFT_OUT}{what}")

    def needs(self, what: str, *packages: str) -> None:
        """Says that the part has `what`. Raises: Unavailable if this size, or this installation, is without it."""
        if self is Size.SMOKE:
            raise Unavailable(f"{LEFT_OUT}{what}")
        for package in packages:
            if find_spec(package) is None:
                raise Unavailable(f"{package} is not installed")
