"""Comparison with Dynamo: groups of requests that share a long prefix, with ample and with tight KV space."""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from typing import Any

from ops.bench.dynamo import dynamo
from ops.bench.load import Line, System, run_load
from ops.bench.parts import Say
from ops.bench.processes import Unavailable
from ops.bench.size import Size
from ops.bench.systems import xylem

WORKERS, GROUPS, MEMBERS, BLOCK = 4, 40, 10, 64
SPACES = {"ample": 16_384, "tight": 512}  # KV blocks of a worker
_LOAD = [
    "--prompt", "prefix", "--groups", str(GROUPS), "--requests", str(GROUPS * MEMBERS), "--prompt-words", "2000",
    "--suffix-words", "50", "--concurrency", "8", "--max-tokens", "16", "--stream", "--max-seconds", "240",
]  # fmt: skip
_FEW = ["--groups", "2", "--requests", "8"]
_PROBE = ["--prompt", "unique", "--prompt-words", "2000", "--requests", "8", "--max-tokens", "16", "--stream"]


def prefix(directory: Path, size: Size, say: Say, model_dir: Path) -> dict[str, Any]:
    """Cached share and TTFT by system and space; what can't be measured is missing, with the reason."""
    seeds = range(1, size.of(4, 2, 2))
    workers, load = size.of(WORKERS, WORKERS, 2), [*_LOAD, *size.of([], [], _FEW)]
    spaces, policies = dict(list(SPACES.items())[: size.of(2, 2, 1)]), ("kv", "round_robin")[: size.of(2, 2, 1)]
    rows: dict[str, dict[str, dict[str, float]]] = {}
    missing = {}
    pace = {"prefill_tokens_per_s": 10_000.0, "step_ms": 6.0}
    for space, blocks in spaces.items():
        rows[space] = {}
        for mode in ("kv", "round-robin")[: len(policies)]:
            say(f"prefix: dynamo {mode}, {space}")
            try:
                start = dynamo(
                    directory / f"dynamo-{mode}-{space}", model_dir, 1, size, workers=WORKERS, blocks=blocks,
                    block_size=BLOCK, mode=mode,
                )  # fmt: skip
                with start as system:
                    if mode == "kv" and space == "ample":
                        pace = _pace(directory, system)
                    rows[space][f"dynamo {mode}"] = _measure(directory, system, seeds, load)
            except Unavailable as exc:
                missing["cached_share_tight_vs_dynamo"] = str(exc)
        for policy in policies:
            say(f"prefix: xylem {policy}, {space}")
            pool = {
                "model": "mock", "engine": "mock", "path": str(model_dir), "block_size": BLOCK, "max_running": 256,
                "max_model_len": 8192, "routing": {"policy": policy}, "args": {"total_blocks": blocks, **pace},
            }  # fmt: skip
            ours: AbstractContextManager[System] = xylem(directory / f"xylem-{policy}-{space}", pool, workers)
            with ours as system:
                rows[space][f"xylem {policy}"] = _measure(directory, system, seeds, load)
    tight = rows.get("tight", {})
    theirs = tight.get("dynamo kv", {}).get("cached_share")
    return {
        "prefix": rows,
        "prefix_pace": pace,
        "cached_share_ample": rows["ample"]["xylem kv"]["cached_share"],
        "cached_share_tight_vs_dynamo": tight["xylem kv"]["cached_share"] / theirs if theirs else None,
        "missing": missing,
    }


def _measure(directory: Path, system: System, seeds: Sequence[int], load: Sequence[str]) -> dict[str, float]:
    """One run for each seed, which has prompts of its own, not cached before."""
    lines = [run_load(system, [*load, "--seed", str(seed)], directory / f"{os.getpid()}.log") for seed in seeds]
    return {
        "cached_share": median(float(line["cached_ratio"]) for line in lines),
        "ttft_mean_ms": median(float(line["ttft_ms"]["mean"]) for line in lines),
        "ttft_p50_ms": median(float(line["ttft_ms"]["p50"]) for line in lines),
        "ttft_p99_ms": median(float(line["ttft_ms"]["p99"]) for line in lines),
    }


def _pace(directory: Path, mocker: System) -> dict[str, float]:
    """The mocker's times for an uncached prompt and for a token, as our mock's arguments."""
    line: Line = run_load(mocker, [*_PROBE, "--seed", "99"], directory / "pace.log")
    step_ms = float(line["tpot_ms"]["p50"])
    prefill_s = (float(line["ttft_ms"]["p50"]) - step_ms) / 1e3
    return {
        "prefill_tokens_per_s": round(float(line["prompt_tokens_mean"]) / max(prefill_s, 1e-3)),
        "step_ms": round(step_ms, 3),
    }
