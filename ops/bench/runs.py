"""The runs of one benchmark, in turns; each is recorded at once."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.progress import Progress, TaskID

from ops.bench.load import Line, System, run_load
from ops.bench.measures import Measure
from ops.bench.processes import Unavailable
from ops.bench.size import Size
from ops.bench.stats import Finding


@dataclass
class Runs:
    """Makes runs one after the other; each line of figures goes to `raw.jsonl` at once."""

    out_dir: Path
    model_dir: Path  # Hugging Face directory: weights for vLLM, the tokenizer for all
    size: Size
    progress: Progress
    task: TaskID
    lines: list[Line] = field(default_factory=list)

    @property
    def repetitions(self) -> int:
        return self.size.of(7, 3, 1)

    def say(self, what: str) -> None:
        self.progress.update(self.task, description=what)

    def one(self, system: System, key: str, options: Sequence[str]) -> Line:
        """Raises: Unavailable."""
        line = {"measure": key, **run_load(system, options, self.out_dir / f"{system.name}.load.log")}
        self.lines.append(line)
        with (self.out_dir / "raw.jsonl").open("a") as raw:
            raw.write(json.dumps(line) + "\n")
        return line

    def compare(self, measure: Measure, sides: "Sides") -> list[Finding]:
        """A B A B …; a side that is missing or fails leaves the other's figures and a reason."""
        ours: list[Line] = []
        theirs: list[Line] = []
        reason = sides.reason
        try:
            for repetition in range(self.repetitions):
                self.say(f"{measure.title}: {repetition + 1} of {self.repetitions}")
                for system, lines in ((sides.ours, ours), (sides.theirs, theirs)):
                    if system is not None:
                        lines.append(self.one(system, measure.key, measure.options(self.size, seed=repetition)))
        except Unavailable as exc:
            reason = str(exc)
        return [_finding(part, ours, theirs, sides.rival, reason) for part in (measure, *measure.more)]


@dataclass(frozen=True)
class Sides:
    """The two compared systems; None for one that could not be started."""

    ours: System | None
    theirs: System | None
    rival: str
    reason: str | None  # why one is missing


def _finding(m: Measure, ours: list[Line], theirs: list[Line], rival: str, reason: str | None) -> Finding:
    reason = None if m.compare == "ours" and ours else reason
    return Finding(
        m.key, m.title, m.unit, m.compare, m.target, m.at_least,
        [m.figure(line) for line in ours], [m.figure(line) for line in theirs], rival, reason,
    )  # fmt: skip
