"""Targets, tables, a plot."""

from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

from ops.bench.figures import targets
from ops.bench.panels import panels
from ops.bench.parts import Results, table

TITLE = "Today's models: routed right, called right, seen right"
TARGETS = targets("""
    index: index_wrong <= 0
    hybrid: hybrid_ttft_ratio <= 0.6, hybrid_cached_share >= 0.9
    templates: templates_wrong <= 0
    readback: readback_wrong <= 0, families_with_tools >= 40
    pictures: pictures_refused <= 0, picture_families >= 12, picture_tokens_wrong <= 0, picture_learn_ms <= 700
    blocks: index_bytes_per_block <= 60
    events: events_per_s_ratio >= 0.95
    placing: place_redis_ms_1000_ratio <= 1.1
    cpu: request_cpu_ratio <= 1.02
""")
_PAIRS = {"events_pairs": "events", "placing_pairs": "placing", "cpu_pairs": "cpu"}


def tables(results: Results) -> Iterator[Table]:
    if "index" in results:
        rows = [*results["index"], *((model, why, "-", "-", "-") for model, why in results["not_indexed"].items())]
        names = ("model", "groups", "prompts", "evicted", "wrong")
        yield table("Prompts whose cached tokens were foretold", *names, rows=rows, left=names[:2])
    if "hybrid" in results:
        rows = []
        for row in results["hybrid"]:
            seconds = row["uncached_s"], row["ttft_s"]["before"], row["ttft_s"]["after"]
            shares = row["shares"]["before"], row["shares"]["after"], row["one_engine"], row["bound"]
            rows.append((row["model"], *(f"{x:.2f}" for x in seconds), *(f"{x:.3f}" for x in shares)))
        title = "Two workers with hybrid models, room for 7 of 12 system prompts each"
        names = (
            "model",
            "an uncached prompt, s",
            "TTFT before, s",
            "now",
            "cached before",
            "now",
            "one engine",
            "bound",
        )
        yield table(title, *names, rows=rows, left=names[:1])
    if "retention" in results:
        rows = []
        for r in results["retention"]:
            setting = "null" if r["setting"] is None else r["setting"]
            rows.append((r["model"], setting, r["blocks"], f"{r['turns']:.2f}", f"{r['shared']:.2f}"))
        names = ("model", "interval", "blocks", "conversations", "shared beginnings")
        yield table("Cached share by what an engine keeps", *names, rows=rows, left=names[:1])


def plot(results: Results, path: Path) -> None:
    """The pairs, from which the ratios are."""
    with panels(path, (8, 4)) as (axes,):
        for key, name in _PAIRS.items():
            if key in results:
                axes.plot(sorted(results[key]), "o-", label=name)
        axes.axhline(1.0, color="grey", linewidth=0.5)
        axes.set(xlabel="pair, in order", ylabel="over the commit before", title=TITLE)
        if set(_PAIRS) & set(results):
            axes.legend()
