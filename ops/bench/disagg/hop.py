"""The cost of a hop to another worker, without the transfer: from the end of the prefill to the decode task."""

import json
import urllib.request
from pathlib import Path
from statistics import fmean
from typing import Any

import uvloop

from ops.bench.disagg.fleets import pair
from ops.bench.disagg.play import Asked, Cpu, Served, percentile, play, poisson
from ops.bench.parts import Say
from ops.bench.size import Size

_PROMPT, _ANSWER = 300, 16  # tokens
_PER_S = (5.0, 15.0)
_SECONDS, _QUICK_SECONDS = 20.0, 10.0
_KV = {"nixl": True, "block_bytes": 64 * 2**10}
_STAGES = ("placement", "queue", "prefill", "hop", "resume", "transfer")


def hop(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Percentiles of each stage, ms, by load. Raises: Unavailable."""
    seconds = size.of(_SECONDS, _QUICK_SECONDS, 1.0)
    rows = []
    disagg, args = {"remote_tokens": 256, "remote_wait_s": 1e6}, {"handoff": _KV}
    say("hop: starting two workers")
    with pair(directory / "hop", disagg, args=args) as system:
        uvloop.run(play(system, [Asked(0.2 * i, _PROMPT, _ANSWER) for i in range(size.of(15, 15, 2))], 0))
        for seed, per_s in enumerate(size.of(_PER_S, _PER_S, _PER_S[-1:]), 1):
            say(f"hop: {per_s:.0f} requests/s for {seconds:.0f} s")
            cpu = Cpu(system.watch)
            answers = uvloop.run(play(system, poisson(1, per_s, seconds, [(_PROMPT, _ANSWER)]), seed))
            rows.append(_row(system.url, per_s, answers, cpu.cores()))
    return {"hop": rows, "hop_p50_ms": rows[-1]["hop"]["p50"], "hop_p99_ms": rows[-1]["hop"]["p99"]}


def _row(url: str, per_s: float, served: list[Served], cores: dict[str, float]) -> dict[str, Any]:
    stages: dict[str, list[float]] = {stage: [] for stage in _STAGES}
    for one in served:
        with urllib.request.urlopen(f"{url}/requests/{one.id}", timeout=5) as response:
            for stage, seconds in json.load(response)["prompts"][0]["stages"].items():
                stages.setdefault(stage, []).append(1e3 * seconds)
    percentiles = {
        stage: {"mean": fmean(ms), "p50": percentile(ms, 50), "p99": percentile(ms, 99)}
        for stage, ms in stages.items()
        if ms
    }
    return {"per_s": per_s, "requests": len(served), "apart": len(stages["hop"]), "cores": cores, **percentiles}
