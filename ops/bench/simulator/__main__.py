"""`python -m ops.bench.simulator TRACE --workers 8 --policy dynamo_cost --policy app.routing.simulated:Policy`."""

import argparse
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console

from ops.bench.parts import table
from ops.bench.simulator.engine import Engine
from ops.bench.simulator.policies import OWN
from ops.bench.simulator.replay import CannotReplay, Replay, Setting, pace_of
from ops.bench.simulator.requests import bounds, read_trace

_SHOWN = ("hit", "ttft_mean", "ttft_p50", "ttft_p90", "ttft_p99", "itl_mean", "busy", "imbalance", "us_per_route")


def main() -> None:
    arguments = _arguments()
    engine = Engine(block_size=arguments.block_size, cache_blocks=arguments.cache_blocks, store_s=arguments.store)
    policies = arguments.policy or [*OWN, "app.routing.simulated:Policy"]
    trace, fleets, jobs = read_trace(arguments.trace, engine.block_size), [], []
    for workers in map(int, arguments.workers.split(",")):
        limits = bounds(trace, engine, workers, arguments.warmup)
        pace = pace_of(trace, limits["uncached"], workers, arguments.load, arguments.sessions)
        setting = Setting(
            engine=engine, workers=workers, pace=pace, seed=arguments.seed, lag_s=arguments.kv_lag,
            warm_up=arguments.warmup,
        )  # fmt: skip
        fleets.append({"trace": arguments.trace.name, "workers": workers, "pace": pace, **limits})
        jobs += [(arguments.trace, setting, policy) for policy in policies]
    try:
        with ProcessPoolExecutor(arguments.jobs) as pool:
            results = list(pool.map(_replayed, *zip(*jobs, strict=True)))
    except (CannotReplay, LookupError) as exc:
        sys.exit(str(exc))
    console = Console(width=None if Console().is_terminal else 160)
    for fleet in fleets:
        fleet["results"] = [result for result in results if result["workers"] == fleet["workers"]]
        _show(console, fleet)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(fleets, indent=1))


def _replayed(path: Path, setting: Setting, policy: str) -> dict[str, Any]:
    return Replay(read_trace(path, setting.engine.block_size), setting, policy).run()


def _show(console: Console, fleet: dict[str, Any]) -> None:
    rows = table(f"{fleet['trace']}, {fleet['workers']} workers", "policy", *_SHOWN, left=("policy",))
    for result in fleet["results"]:
        rows.add_row(result["policy"], *(f"{result[name]:.3g}" for name in _SHOWN))
    console.print(rows)
    infinite, of_pool = fleet["hit_infinite"], fleet["hit_pooled"]
    console.print(
        f"No router's hits can be above {infinite:.3f}; {of_pool:.3f} with one cache as large as all together."
    )


def _arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(prog="python -m ops.bench.simulator")
    options.add_argument("trace", type=Path)
    options.add_argument("--workers", default="8", help="a number, or several with commas")
    options.add_argument(
        "--policy", action="append", help="may be repeated: a name, or module:class; ?key=value&… behind"
    )
    options.add_argument("--load", type=float, default=0.85, help="of all workers' time, if nothing were cached")
    options.add_argument(
        "--sessions", type=float, default=16, help="live ones for each worker, if the trace has sessions"
    )
    options.add_argument("--block-size", type=int, default=Engine.block_size, help="tokens")
    options.add_argument("--cache-blocks", type=int, default=Engine.cache_blocks, help="of each worker")
    options.add_argument(
        "--store", type=float, default=0.0, help="seconds for a block of a store that all share; 0: none"
    )
    options.add_argument("--kv-lag", type=float, default=Setting.lag_s, help="seconds until a KV event is known")
    options.add_argument(
        "--warmup", type=float, default=Setting.warm_up, help="share of the requests that doesn't count"
    )
    options.add_argument("--seed", type=int, default=Setting.seed)
    options.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    options.add_argument("--json", type=Path, help="where all figures go")
    return options.parse_args()


if __name__ == "__main__":
    main()
