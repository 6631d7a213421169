"""Targets and tables."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.table import Table

from ops.bench.parts import Results, Target, table

TITLE = "Agents"
TARGETS: dict[str, dict[str, Target]] = {
    "conformance": {
        "conformance_pass": (0.9, True),
        "conformance_family_min": (0.8, True),
    },
    "parser": {
        "parser_us_per_token": (1.0, False),
        "parser_prose_us_per_token": None,
        "parser_call_us_per_token": None,
    },
    "plain": {
        "plain_us_per_token_ratio": (1.05, False),
        "plain_us_per_token": None,
        "plain_us_per_token_before": None,
    },
    "survival": {
        "schema_survives": (1.0, True),
        "schema_survives_mock": None,
        "schema_survives_vllm": None,
    },
    "comply": {
        "llm_comply_failed": (0, False),
    },
    "embeddings": {
        "embeddings_per_s_ratio": (0.95, True),
        "embeddings_per_s": None,
        "llm_embed_per_s": None,
    },
    "clients": {
        "clients_failed": (0, False),
    },
}


def tables(results: Results) -> Iterator[Table]:
    if "conformance" in results:
        result_table = table("canitoolcall, whole and cut in four ways", "family", "met", "of", left=["family"])
        for family, (pass_count, case_count) in results["conformance"].items():
            result_table.add_row(family, str(pass_count), str(case_count))
        yield result_table
    for engine in ("mock", "vllm"):
        if (figures := results.get(f"survival_{engine}")) is not None:
            result_table = table(f"Structured answers while workers of {engine} are killed", "measured", "value")
            for name in ("kills", "answers"):
                result_table.add_row(name, str(figures[name]))
            result_table.add_row("unequal", str(len(figures["unequal"])))
            yield result_table
    for name in ("llm_comply", "clients"):
        if isinstance(results.get(name), dict):
            yield _outcomes(name, results[name])


def _outcomes(name: str, found: dict[str, Any]) -> Table:
    result_table = table(name, "what", "outcome", left=["what", "outcome"])
    for what, outcome in found.items():
        result_table.add_row(what, str(outcome))
    return result_table


def plot(results: Results, path: Path) -> None:
    """The share of each family's cases that are met, and what a plain token costs in each pair."""
    figure = Figure(figsize=(13, 4.5), layout="tight")
    left_axes, right_axes = figure.subplots(1, 2)
    families = results.get("conformance", {})
    left_axes.barh(
        [*families], [pass_count / case_count for pass_count, case_count in families.values()], color="tab:green"
    )
    left_axes.axvline(TARGETS["conformance"]["conformance_family_min"][0], color="gray", linestyle=":")  # type: ignore[index]
    left_axes.set(title="canitoolcall's cases that are met", xlim=(0, 1))
    pairs = results.get("plain_pairs", [])
    right_axes.plot([before for before, _ in pairs], "o-", color="tab:gray", label="before")
    right_axes.plot([after for _, after in pairs], "o-", color="tab:green", label="now")
    right_axes.set(title="a plain streamed token, API CPU", xlabel="pair", ylabel="us")
    right_axes.set_ylim(bottom=0)
    if pairs:
        right_axes.legend()
    figure.savefig(path, dpi=90)
