"""Medians over repetitions, ratios and differences pair by pair, and how quiet the machine was."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from ops.bench.load import Line

# Of our side alone are growth, from the first figure to the last, and ours, the figure itself.
Compare = Literal["ratio", "delta", "growth", "ours"]


@dataclass(frozen=True)
class Finding:
    """One result: a figure per repetition on each side, and their comparison."""

    key: str  # in the line of JSON
    title: str
    unit: str
    compare: Compare
    target: float
    at_least: bool = False  # the target is a minimum and not a maximum
    ours: Sequence[float] = ()
    theirs: Sequence[float] = ()
    rival: str = "dynamo"
    reason: str | None = None  # why there is no value

    @property
    def pairs(self) -> list[float]:
        """Repetition by repetition: ours / theirs, ours - theirs, or ours. One for growth."""
        if self.compare == "growth":
            return [self.ours[-1] - self.ours[0]] if self.ours else []
        if self.compare == "ours":
            return list(self.ours)
        both = zip(self.ours, self.theirs, strict=False)
        return [a / b if self.compare == "ratio" else a - b for a, b in both]

    @property
    def value(self) -> float | None:
        return median(self.pairs) if self.pairs and not self.reason else None

    @property
    def met(self) -> bool | None:
        if self.value is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target


@dataclass(frozen=True)
class Quiet:
    """CPU seconds that other processes and the hypervisor took during the measured runs."""

    wall_s: float
    other_cpu_s: float
    steal_s: float

    @classmethod
    def of(cls, lines: Iterable[Line]) -> "Quiet":
        runs = list(lines)
        total: Callable[[str], float] = lambda key: sum(line.get(key, 0.0) for line in runs)  # noqa: E731 (short)
        return cls(total("wall_s"), total("other_cpu_s"), total("steal_s"))

    def sentence(self, cores: int) -> str:
        lost_share = (self.other_cpu_s + self.steal_s) / (self.wall_s * cores) if self.wall_s else 0.0
        return (
            f"{self.wall_s:.0f} s measured on {cores} cores; other processes took {self.other_cpu_s:.1f} CPU-s, "
            f"the host stole {self.steal_s:.1f} s: {lost_share:.1%} of the machine"
        )
