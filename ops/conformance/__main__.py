"""`make conformance`: runs others' suites; prints a table, each new difference, and one line of JSON."""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from ops.bench.parts import table
from ops.bench.processes import Unavailable
from ops.bench.session import measuring
from ops.conformance.install import HOME, PYTHON, install, sources
from ops.conformance.outcomes import Verdict, judged, read_differences, read_junit
from ops.conformance.server import served
from ops.conformance.suites import NAMES, OWN_SUITES, SOURCE_SUITES, SourceSuite

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
_LIMIT_S = 1200.0  # of one suite


def main() -> None:
    options = argparse.ArgumentParser(prog="make conformance", description=__doc__)
    options.add_argument("--only", action="append", choices=NAMES, help="may be repeated")
    suites = options.parse_args().only or NAMES
    with measuring("conformance", HOME / "runs") as (out_dir, progress, task):
        try:
            verdicts = run(suites, out_dir, lambda what: progress.update(task, description=what))
        except Unavailable as exc:
            sys.exit(f"not run: {exc}")
    sys.exit(_show(verdicts, out_dir))


def run(chosen: Sequence[str], out_dir: Path, say: Callable[[str], None]) -> dict[str, Verdict]:
    """Each suite's verdict. Raises: Unavailable."""
    out_dir.mkdir(parents=True, exist_ok=True)
    say("installing suites")
    install()
    chosen_sources = {suite: sources(suite.package) for suite in SOURCE_SUITES if suite.package in chosen}
    names = {name for suite, folder in chosen_sources.items() for name in _models(folder, suite)}
    verdicts = {}
    with served(out_dir / "server", sorted(names)) as system:
        for suite, folder in chosen_sources.items():
            say(suite.package)
            files = ["-p", "existing_objects", *(f"tests/api_resources/{file}" for file in suite.files)]
            verdicts[suite.package] = _pytest(suite.package, files, folder, out_dir, system.url + suite.base)
        for name in OWN_SUITES:
            if name in chosen:
                say(name)
                verdicts[name] = _pytest(
                    name, ["-c", str(_HERE / "pytest.ini"), str(_HERE / f"with_{name}.py")], _HERE, out_dir, system.url
                )
    if "document" in chosen:
        say("schemathesis")
        verdicts["document"] = _pytest("document", ["tests/fuzz/test_http.py"], _ROOT, out_dir, "", sys.executable)
    return verdicts


def _models(folder: Path, suite: SourceSuite) -> set[str]:
    """The models that its tests ask for."""
    tests = [folder / "tests" / "api_resources" / file for file in suite.files]
    read = [file for path in tests for file in (path.rglob("*.py") if path.is_dir() else [path])]
    names = {name for file in read for name in re.findall(r'model="([^"]+)"', file.read_text())}
    names |= {name for file in folder.glob("src/*/_data/*.py") for name in re.findall(suite.more, file.read_text())}
    return names - {"mock"} | {"model_id"}


def _pytest(name: str, files: list[str], folder: Path, out_dir: Path, url: str, python: str = str(PYTHON)) -> Verdict:
    report, log = out_dir / f"{name}.xml", out_dir / f"{name}.log"
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "120", *files]
    env = {
        "PATH": os.environ["PATH"], "HOME": str(out_dir), "PYTHONPATH": str(_HERE), "PYTHONDONTWRITEBYTECODE": "1",
        "TEST_API_BASE_URL": url, "SUITE": name,
        **{key: value for key, value in os.environ.items() if key.startswith(("XYLEM_OPENAI_SPEC", "PIP_"))},
    }  # fmt: skip
    began = time.monotonic()
    with log.open("wb") as sink:
        try:
            subprocess.run(
                [*command, "--junitxml", str(report)],
                cwd=folder, env=env, stdout=sink, stderr=sink, timeout=_LIMIT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as exc:
            raise Unavailable(f"{name} took over {time.monotonic() - began:.0f} s; {log}") from exc
    if not report.exists():
        raise Unavailable(f"{name} wrote no report; {log}")
    outcomes = read_junit(report)
    if not outcomes:
        raise Unavailable(f"{name} ran no test; {log}")
    return judged(outcomes, read_differences(name))


def _show(verdicts: dict[str, Verdict], out_dir: Path) -> bool:
    """Whether anything is new or gone."""
    result_table = table("Conformance", "suite", "passed", "differ as expected", "new", "gone", left=("suite",))
    for name, verdict in verdicts.items():
        cells = (verdict.passed, verdict.expected, len(verdict.new), len(verdict.gone))
        result_table.add_row(name, *map(str, cells))
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(result_table)
    for name, verdict in verdicts.items():
        for one in verdict.new:
            console.print(f"{name}: new: {one}", style="yellow", markup=False)
        for one in verdict.gone:
            console.print(f"{name}: no longer differs: {one}", style="yellow", markup=False)
    console.print(f"reports and logs: {out_dir}", markup=False)
    totals = {
        "conformance_passed": sum(verdict.passed for verdict in verdicts.values()),
        "conformance_expected": sum(verdict.expected for verdict in verdicts.values()),
        "conformance_new": sum(len(verdict.new) for verdict in verdicts.values()),
        "conformance_gone": sum(len(verdict.gone) for verdict in verdicts.values()),
    }
    print(json.dumps(totals), flush=True)
    return bool(totals["conformance_new"] or totals["conformance_gone"])


if __name__ == "__main__":
    main()
