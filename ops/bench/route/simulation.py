"""Our policy in the trace-driven simulator, next to Dynamo's and SGLang's."""

import gzip
import json
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from ops.bench.load import trace as trace_file
from ops.bench.parts import Say
from ops.bench.processes import finished
from ops.bench.simulator.policies import ORACLE
from ops.bench.size import Size
from tests.stack import ROOT

OURS, DEFAULT = "app.routing.simulated:Policy", "dynamo_cost"
RIVALS = ("dynamo_cost?overlap_weight=16", "dynamo_cost?formula=lmetric", "sglang?balance_abs=16")
TRACES = ("mooncake_conversation_dev.jsonl.gz", "agentic_dev.jsonl.gz")
WORKERS, CACHES = (4, 8, 16), (4000, 2000)
_FEW = 300  # requests of a trace, in the smallest size
_LIMIT_S = 1200


def simulation(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Per trace, size and cache the policies' figures, means over seeds; and the ratios. Raises: Unavailable."""
    seeds = range(size.of(3, 1, 1))
    traces = [trace_file(name) for name in TRACES[: size.of(2, 2, 1)]]
    if size.smallest:
        traces = [beginning(trace, directory) for trace in traces]
    policies = [OURS, DEFAULT, *RIVALS, ORACLE, "least_loaded", "round_robin", "random"]
    rows = []
    for trace in traces:
        for cache in CACHES[: size.of(2, 2, 1)]:
            for workers in WORKERS[: size.of(3, 3, 1)]:
                say(f"simulation: {trace.name.partition('_')[0]}, {workers} workers, {cache} blocks")
                runs = [run(directory, trace, workers, policies, seed, cache) for seed in seeds]
                figures = {p: {k: fmean(r[p][k] for r in runs) for k in runs[0][p]} for p in policies}
                rows.append({"trace": trace.name, "workers": workers, "cache": cache, "policies": figures})
    say("simulation: nothing shared")
    control = run(directory, _nothing_shared(directory, traces[0]), 8, [OURS, "least_loaded"], 0, CACHES[0])
    comparisons = [_compare(row["policies"]) for row in rows]
    return {
        "simulated": rows,
        "ttft_mean_vs_dynamo": max(c["vs_dynamo"] for c in comparisons),
        "ttft_mean_vs_best": max(c["vs_best"] for c in comparisons),
        "ttft_p99_vs_best": max(c["p99_vs_best"] for c in comparisons),
        "way_to_oracle": fmean(c["way"] for c in comparisons),
        "no_reuse_loss": control[OURS]["ttft_mean"] / control["least_loaded"]["ttft_mean"] - 1,
        "compared": comparisons,
    }


def run(
    directory: Path, trace: Path, workers: int, policies: Sequence[str], seed: int, cache: int, *more: str
) -> dict[str, dict[str, float]]:
    """Figures by policy. Raises: Unavailable."""
    out, log = directory / "out.json", directory / "simulator.log"
    # A closed loop needs more sessions in the trace than run at a time.
    sessions = ["--sessions", "8"] if workers == 16 else []
    command = [
        sys.executable, "-m", "ops.bench.simulator", str(trace.absolute()), "--workers", str(workers),
        "--seed", str(seed), "--cache-blocks", str(cache), "--json", str(out.absolute()), *sessions, *more,
    ]  # fmt: skip
    command += [f"--policy={policy}" for policy in policies]
    finished(command, log, _LIMIT_S, "the simulator", cwd=ROOT)
    keys = ("ttft_mean", "ttft_p50", "ttft_p90", "ttft_p99", "hit", "imbalance", "us_per_route")
    results = json.loads(out.read_text())[0]["results"]
    return {r["policy"]: {key: r[key] for key in keys} for r in results}


def _compare(figures: dict[str, dict[str, float]]) -> dict[str, float]:
    """Ratios of our TTFT to the best rival's, below 1 is better; best mean and best p99 may be of different rivals."""
    mean, p99 = ({p: f[key] for p, f in figures.items()} for key in ("ttft_mean", "ttft_p99"))
    best = min(mean[p] for p in RIVALS)
    return {
        "vs_dynamo": mean[OURS] / mean[DEFAULT],
        "vs_best": mean[OURS] / best,
        "p99_vs_best": p99[OURS] / min(p99[p] for p in RIVALS),
        "way": (best - mean[OURS]) / (best - mean[ORACLE]),
    }


def beginning(trace: Path, directory: Path) -> Path:
    """The first requests of a trace, as a trace."""
    path = directory / trace.name.removesuffix(".gz")
    with gzip.open(trace, "rt") as rows:
        path.write_text("".join(islice(rows, _FEW)))
    return path


def _nothing_shared(directory: Path, of: Path) -> Path:
    """A trace without its block ids: no two prompts have a common prefix."""
    path = directory / "nothing_shared.jsonl"
    with gzip.open(of, "rt") if of.suffix == ".gz" else of.open() as trace, path.open("w") as out:
        for line in trace:
            out.write(json.dumps(json.loads(line) | {"hash_ids": []}) + "\n")
    return path
