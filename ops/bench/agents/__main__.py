"""`make bench NAME=agents`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ops.bench.agents import report
from ops.bench.agents.comply import measured as comply
from ops.bench.agents.parser import conformance, parser_cost
from ops.bench.agents.plain import plain_streams
from ops.bench.agents.survival import on_mock, on_vllm
from ops.bench.embeddings import embeddings_per_s_ratio
from ops.bench.parts import Say, run_parts
from ops.clients.trial import tried


class Part(StrEnum):
    conformance = "conformance"
    parser = "parser"
    plain = "plain"
    survival = "survival"
    comply = "comply"
    embeddings = "embeddings"
    clients = "clients"


def survival(out_dir: Path, quick: bool, say: Say) -> dict[str, Any]:
    """Reports the worse of both engines. Raises: Unavailable."""
    found = on_mock(out_dir / "mock", quick, say) | on_vllm(out_dir / "vllm", quick, say)
    return found | {"schema_survives": min(found["schema_survives_mock"], found["schema_survives_vllm"])}


def main(
    quick: Annotated[bool, typer.Option(envvar="QUICK", help="Shorter: about ten minutes.")] = False,
    only: Annotated[list[Part] | None, typer.Option(help="Run these parts only.")] = None,
    out: Annotated[Path, typer.Option(help="Where reports go.")] = Path(".xylem/bench"),
) -> None:
    """Measure what agents need: parsing, structured output, compliance, embeddings, clients."""
    parts = {
        Part.conformance: conformance, Part.parser: parser_cost, Part.plain: plain_streams, Part.survival: survival,
        Part.comply: comply, Part.embeddings: embeddings_per_s_ratio, Part.clients: tried,
    }  # fmt: skip
    run_parts("agents", report, parts, only or list(Part), quick, out)


if __name__ == "__main__":
    typer.run(main)
