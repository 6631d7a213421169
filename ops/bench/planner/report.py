"""Targets, tables, one figure."""

from collections.abc import Iterator
from pathlib import Path

from matplotlib.figure import Figure
from rich.table import Table

from ops.bench.parts import Results, Target, table

TITLE = "Planning"
TARGETS: dict[str, dict[str, Target]] = {
    "simulation": {
        "attained": (0.99, True),
        "attained_mean": None,
        "workers_vs_clairvoyant": (1.15, False),
        "workers_vs_static": (0.9, False),
    },
    "dynamo": {
        "workers_vs_dynamo": (0.9, False),
    },
    "live": {
        "attained_live": (0.97, True),
        "scale_in_lost": (0, False),
    },
    "tracing": {
        "trace_unsampled_us": (10, False),
        "trace_sampled_us": None,
    },
    "panels": {
        "panels_empty": (0, False),
    },
    "groups": {
        "group_recovery_s": (3, False),
    },
    "helm": {
        "helm_examples_invalid": (0, False),
    },
    "soak": {
        "soak_growth": (0.02, False),
    },
}
_PICTURE = Path("ops/pictures/planner.png")
_HOURS = 10 / 7200 * 24  # of a day that takes two hours: one window


def tables(results: Results) -> Iterator[Table]:
    for key, title in (("runs", "The day of the trace"), ("others", "Days of other shapes, start-up 30 s")):
        if key not in results:
            continue
        names = ("day", "start-up s", "attained", "workers", "best plan", "attains", "ratio", "fixed", "ratio")
        result_table = table(title, *names, left=["day"])
        rows = results[key].items() if key == "others" else [(f"seed {run['seed']}", run) for run in results[key]]
        for name, run in rows:
            result_table.add_row(
                name, f"{run['start_s']:.0f}", f"{run['attained']:.4f}", f"{run['workers']:.3f}", f"{run['best']:.3f}",
                f"{run['best_attained']:.4f}", f"{run['workers'] / run['best']:.3f}", str(run["static"]),
                f"{run['workers'] / run['static']:.3f}",
            )  # fmt: skip
        yield result_table
    if "fixed" in results:
        result_table = table("Fixed numbers of workers, seed 0", *(str(n) for n in results["fixed"]), left=())
        result_table.add_row(*(f"{share:.4f}" for share in results["fixed"].values()))
        yield result_table
    if "dynamo" in results:
        result_table = table(
            "Dynamo's planner in its replay, start-up 30 s", "mode", "attained", "workers", left=["mode"]
        )
        for name, mode in results["dynamo"].items():
            result_table.add_row(name, f"{mode['attained']:.4f}", f"{mode['workers']:.3f}")
        yield result_table


def plot(results: Results, path: Path) -> None:
    if "day" not in results:
        return
    day = results["day"]
    figure = Figure(figsize=(11, 6), layout="tight")
    above, below = figure.subplots(2, 1, sharex=True)
    hours = [i * _HOURS for i in range(len(day["arrivals"]))]
    above.plot(hours, [n / 10 for n in day["arrivals"]], linewidth=0.6)
    above.set(ylabel="arrivals/s", title="A day of a public trace, twelve times faster; start-up 30 s", ylim=(0, None))
    below.step(hours, day["ours"], where="post", label=f"xylem planner: {results['workers']:.2f} in the mean")
    below.step(hours, day["best"], where="post", linestyle=":", label="the best plan, known beforehand")
    below.axhline(results["runs"][0]["static"], color="grey", linewidth=0.8, label="the best fixed number")
    for name, mode in results.get("dynamo", {}).items():
        label = f"Dynamo, {name}: mean; attains {mode['attained']:.3f}"
        below.axhline(mode["workers"], linestyle="--", linewidth=0.8, color="tab:red", label=label)
    below.set(xlabel="hour of the day", ylabel="workers", ylim=(0, None))
    below.legend(fontsize=8)
    figure.savefig(path, dpi=90)
    if results["pictured"]:
        _PICTURE.write_bytes(path.read_bytes())
