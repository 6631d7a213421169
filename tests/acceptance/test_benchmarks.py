"""Every benchmark, in its smallest size: what measures the product changes with it, or nobody notices that it broke."""

import json
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from ops.bench.agents import plain
from ops.bench.benchmarks import OF_LITTLE, benchmarks, figures
from ops.bench.load import trace
from ops.bench.models import hybrid
from ops.bench.planner import days
from ops.bench.processes import Unavailable
from ops.bench.route.simulation import TRACES
from ops.bench.size import LEFT_OUT
from ops.bench.tiers import cost
from tests.forks import Forked
from tests.stack import ROOT

LIMIT_S = 500.0
AT_ONCE = 2


class Ran(NamedTuple):
    code: int
    said: str
    missing: dict[str, str]  # why, by figure


@pytest.fixture(scope="module")
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Ran]]:
    """Runs the benchmarks that are asked for here, two at a time: most of them wait for most of their time."""
    names = [vars(item)["callspec"].params["name"] for item in request.session.items if item.path == request.path]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        running: dict[str, Future[Ran]] = {
            name: threads.submit(run, benchmarks()[name], tmp_path_factory.mktemp(name)) for name in names
        }
        yield lambda name: running[name].result()


def run(script: Path, directory: Path) -> Ran:
    log = directory / "said"
    log.touch()
    env = {name: value for name, value in os.environ.items() if name != "QUICK"} | {"SMOKE": "1"}
    where = [] if script.stem == "groups" else ["--out", str(directory)]
    bench = Forked([str(script), *where], ROOT, env, log, engine="bench", serves=True)
    try:
        code = bench.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        bench.kill()
        raise
    reasons = [json.loads(path.read_text()) for path in directory.glob("*/missing.json")]
    return Ran(code, log.read_text(), reasons[0] if reasons else {})


def absent() -> Iterable[str]:
    """Further beginnings that a reason may have on this machine."""
    for name in (*TRACES, days.TRACE):
        try:
            trace(name)
        except Unavailable:
            yield f"no {name}"
    for commit in (plain.BEFORE, cost.BEFORE, hybrid.BEFORE):
        if subprocess.run(["git", "cat-file", "-e", commit], cwd=ROOT, check=False, capture_output=True).returncode:
            yield f"no tree of {commit}"


@pytest.mark.timeout(LIMIT_S * 2)
@pytest.mark.parametrize("name", benchmarks())
def test_a_benchmark_ends_with_all_of_its_figures(ran: Callable[[str], Ran], name: str) -> None:
    """Each is a number, or null for a reason: it needs what isn't started here, or there is none of so little."""
    code, output, missing = ran(name)
    assert code == 0, output[-3000:]
    line = json.loads(output.splitlines()[-1])
    assert list(line) == figures(name)
    null = {key for key, value in line.items() if value is None}
    assert null <= set(missing)
    known_reasons = (LEFT_OUT, *OF_LITTLE, *absent())
    failures = {key: why for key, why in missing.items() if not any(reason in why for reason in known_reasons)}
    assert not failures, output[-3000:]
