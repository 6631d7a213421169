"""Targets and tables."""

from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

from ops.bench.figures import targets
from ops.bench.panels import panels
from ops.bench.parts import Results, table

TITLE = "Agents"
TARGETS = targets("""
    conformance: conformance_pass >= 0.9, conformance_family_min >= 0.8
    parser: parser_us_per_token <= 1, parser_prose_us_per_token, parser_call_us_per_token
    plain: plain_us_per_token_ratio <= 1.05, plain_us_per_token, plain_us_per_token_before
    survival: schema_survives >= 1, schema_survives_mock, schema_survives_vllm
    comply: llm_comply_failed <= 0
    embeddings: embeddings_per_s_ratio >= 0.95, embeddings_per_s, llm_embed_per_s
    clients: clients_failed <= 0
""")


def tables(results: Results) -> Iterator[Table]:
    if "conformance" in results:
        rows = ((family, *counts) for family, counts in results["conformance"].items())
        yield table("canitoolcall, whole and cut in four ways", "family", "met", "of", rows=rows, left=["family"])
    for engine in ("mock", "vllm"):
        if (figures := results.get(f"survival_{engine}")) is not None:
            counts = [(name, figures[name]) for name in ("kills", "answers")] + [("unequal", len(figures["unequal"]))]
            title = f"Structured answers while workers of {engine} are killed"
            yield table(title, "measured", "value", rows=counts)
    for name in ("llm_comply", "clients"):
        if isinstance(results.get(name), dict):
            yield table(name, "what", "outcome", rows=results[name].items(), left=["what", "outcome"])


def plot(results: Results, path: Path) -> None:
    """The share of each family's cases that are met, and what a plain token costs in each pair."""
    with panels(path, (13, 4.5), columns=2) as (left_axes, right_axes):
        families = results.get("conformance", {})
        shares = [pass_count / case_count for pass_count, case_count in families.values()]
        left_axes.barh([*families], shares, color="tab:green")
        left_axes.axvline(TARGETS["conformance"]["conformance_family_min"][0], color="gray", linestyle=":")  # type: ignore[index]
        left_axes.set(title="canitoolcall's cases that are met", xlim=(0, 1))
        pairs = results.get("plain_pairs", [])
        right_axes.plot([before for before, _ in pairs], "o-", color="tab:gray", label="before")
        right_axes.plot([after for _, after in pairs], "o-", color="tab:green", label="now")
        right_axes.set(title="a plain streamed token, API CPU", xlabel="pair", ylabel="us")
        right_axes.set_ylim(bottom=0)
        if pairs:
            right_axes.legend()
