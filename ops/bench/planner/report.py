"""Targets, tables, one figure."""

from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

from ops.bench.figures import targets
from ops.bench.panels import panels
from ops.bench.parts import Results, table

TITLE = "Planning"
TARGETS = targets("""
    simulation: attained >= 0.99, attained_mean, workers_vs_clairvoyant <= 1.15, workers_vs_static <= 0.9
    dynamo: workers_vs_dynamo <= 0.9
    live: attained_live >= 0.97, scale_in_lost <= 0
    tracing: trace_unsampled_us <= 10, trace_sampled_us
    panels: panels_empty <= 0
    groups: group_recovery_s <= 3
    helm: helm_examples_invalid <= 0
    soak: soak_growth <= 0.02
""")
_PICTURE = Path("ops/pictures/planner.png")
_HOURS = 10 / 7200 * 24  # of a day that takes two hours: one window


def tables(results: Results) -> Iterator[Table]:
    names = ("day", "start-up s", "attained", "workers", "best plan", "attains", "ratio", "fixed", "ratio")
    if "runs" in results:
        rows = (_row(f"seed {run['seed']}", run) for run in results["runs"])
        yield table("The day of the trace", *names, rows=rows, left=["day"])
    if "others" in results:
        rows = (_row(name, run) for name, run in results["others"].items())
        yield table("Days of other shapes, start-up 30 s", *names, rows=rows, left=["day"])
    if "fixed" in results:
        shares = [f"{share:.4f}" for share in results["fixed"].values()]
        yield table("Fixed numbers of workers, seed 0", *map(str, results["fixed"]), rows=[shares], left=())
    if "dynamo" in results:
        rows = ([name, f"{of['attained']:.4f}", f"{of['workers']:.3f}"] for name, of in results["dynamo"].items())
        title = "Dynamo's planner in its replay, start-up 30 s"
        yield table(title, "mode", "attained", "workers", rows=rows, left=["mode"])


def _row(name: str, run: dict[str, float]) -> list[str]:
    workers, best, static = run["workers"], run["best"], run["static"]
    return [
        name, f"{run['start_s']:.0f}", f"{run['attained']:.4f}", f"{workers:.3f}", f"{best:.3f}",
        f"{run['best_attained']:.4f}", f"{workers / best:.3f}", str(static), f"{workers / static:.3f}",
    ]  # fmt: skip


def plot(results: Results, path: Path) -> None:
    if "day" not in results:
        return
    day = results["day"]
    hours = [i * _HOURS for i in range(len(day["arrivals"]))]
    with panels(path, (11, 6), 2) as (above, below):
        above.sharex(below)
        above.tick_params(labelbottom=False)
        above.plot(hours, [n / 10 for n in day["arrivals"]], linewidth=0.6)
        title = "A day of a public trace, twelve times faster; start-up 30 s"
        above.set(ylabel="arrivals/s", title=title, ylim=(0, None))
        below.step(hours, day["ours"], where="post", label=f"xylem planner: {results['workers']:.2f} in the mean")
        below.step(hours, day["best"], where="post", linestyle=":", label="the best plan, known beforehand")
        below.axhline(results["runs"][0]["static"], color="grey", linewidth=0.8, label="the best fixed number")
        for name, mode in results.get("dynamo", {}).items():
            label = f"Dynamo, {name}: mean; attains {mode['attained']:.3f}"
            below.axhline(mode["workers"], linestyle="--", linewidth=0.8, color="tab:red", label=label)
        below.set(xlabel="hour of the day", ylabel="workers", ylim=(0, None))
        below.legend(fontsize=8)
    if results["pictured"]:
        _PICTURE.write_bytes(path.read_bytes())
