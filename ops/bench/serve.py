"""`make bench NAME=serve`: the cost of serving, next to NVIDIA Dynamo and vLLM's own server."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ops.bench import phases, report
from ops.bench.figures import tell
from ops.bench.processes import Unavailable
from ops.bench.runs import Runs
from ops.bench.session import measuring
from ops.bench.size import Size
from ops.bench.stats import Finding, Quiet

FIGURES = [key for of in report.FIGURES.values() for key in of]


class Phase(StrEnum):
    fast = "fast"
    paced = "paced"
    vllm = "vllm"


def main(
    quick: Annotated[bool, typer.Option(envvar="QUICK", help="Fewer and shorter runs: about three minutes.")] = False,
    profile: Annotated[bool, typer.Option(help="Also sample the API process with py-spy.")] = False,
    only: Annotated[list[Phase] | None, typer.Option(help="Run these parts only.")] = None,
    model_dir: Annotated[Path, typer.Option(help="Hugging Face directory of the model.")] = Path(
        ".xylem/models/SmolLM2-135M-Instruct"
    ),
    out: Annotated[Path, typer.Option(help="Where reports go.")] = Path(".xylem/bench"),
) -> None:
    """Measure, print tables, write plot and raw lines; the last line printed is JSON."""
    console = Console(width=None if sys.stdout.isatty() else 180)
    with measuring("serve", out) as (out_dir, progress, task):
        runs = Runs(out_dir, model_dir.resolve(), Size.asked(quick), progress, task)
        findings: list[Finding] = []
        missing: dict[str, str] = {}
        for phase in Phase:
            if only and phase not in only:
                missing |= dict.fromkeys(report.FIGURES[phase], f"the part {phase} was not run")
                continue
            try:
                _check(runs)
                findings += getattr(phases, phase)(runs, profile)
            except Unavailable as exc:
                missing |= dict.fromkeys(report.FIGURES[phase], str(exc))
    quiet = Quiet.of(runs.lines).sentence(report.cores())
    report.plot(findings, quiet, out_dir / "report.png")
    console.print(report.context_table(runs.lines), report.findings_table(findings), quiet)
    console.print(f"plot, raw lines and logs: {out_dir}", markup=False)
    missing |= {finding.key: finding.reason for finding in findings if finding.value is None and finding.reason}
    line = tell(FIGURES, {finding.key: finding.value for finding in findings}, missing, out_dir, console)
    (out_dir / "result.json").write_text(line + "\n")


def _check(runs: Runs) -> None:
    """Raises: Unavailable when nothing at all could be measured."""
    if not (runs.model_dir / "tokenizer.json").exists():
        raise Unavailable(f"no model in {runs.model_dir}: `make run` makes it, or give --model-dir")


if __name__ == "__main__":
    typer.run(main)
