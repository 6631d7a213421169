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
        made = table("canitoolcall, whole and cut in four ways", "family", "met", "of", left=["family"])
        for family, (met, all_) in results["conformance"].items():
            made.add_row(family, str(met), str(all_))
        yield made
    for engine in ("mock", "vllm"):
        if (found := results.get(f"survival_{engine}")) is not None:
            made = table(f"Structured answers while workers of {engine} are killed", "measured", "value")
            for name in ("kills", "answers"):
                made.add_row(name, str(found[name]))
            made.add_row("unequal", str(len(found["unequal"])))
            yield made
    for name in ("llm_comply", "clients"):
        if isinstance(results.get(name), dict):
            yield _outcomes(name, results[name])


def _outcomes(name: str, found: dict[str, Any]) -> Table:
    made = table(name, "what", "outcome", left=["what", "outcome"])
    for what, outcome in found.items():
        made.add_row(what, str(outcome))
    return made


def plot(results: Results, path: Path) -> None:
    """The share of each family's cases that are met, and what a plain token costs in each pair."""
    figure = Figure(figsize=(13, 4.5), layout="tight")
    left, right = figure.subplots(1, 2)
    families = results.get("conformance", {})
    left.barh([*families], [met / all_ for met, all_ in families.values()], color="tab:green")
    left.axvline(TARGETS["conformance"]["conformance_family_min"][0], color="gray", linestyle=":")  # type: ignore[index]
    left.set(title="canitoolcall's cases that are met", xlim=(0, 1))
    pairs = results.get("plain_pairs", [])
    right.plot([before for before, _ in pairs], "o-", color="tab:gray", label="before")
    right.plot([after for _, after in pairs], "o-", color="tab:green", label="now")
    right.set(title="a plain streamed token, API CPU", xlabel="pair", ylabel="us")
    right.set_ylim(bottom=0)
    if pairs:
        right.legend()
    figure.savefig(path, dpi=90)
