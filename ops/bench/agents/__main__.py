"""`make bench NAME=agents`."""

from pathlib import Path
from typing import Any

from ops.bench.agents import report
from ops.bench.agents.comply import measured as comply
from ops.bench.agents.parser import conformance, parser_cost
from ops.bench.agents.plain import plain_streams
from ops.bench.agents.survival import on_mock, on_vllm
from ops.bench.embeddings import embeddings_per_s_ratio
from ops.bench.parts import Say, bench
from ops.bench.processes import Unavailable
from ops.bench.size import Size
from ops.clients.trial import tried


def survival(out_dir: Path, size: Size, say: Say) -> dict[str, Any]:
    """Reports the worse of both engines. Raises: Unavailable."""
    figures = on_mock(out_dir / "mock", size, say)
    try:
        figures |= on_vllm(out_dir / "vllm", size, say)
    except Unavailable as exc:
        return figures | {"missing": dict.fromkeys(("schema_survives", "schema_survives_vllm"), str(exc))}
    return figures | {"schema_survives": min(figures["schema_survives_mock"], figures["schema_survives_vllm"])}


PARTS = {
    "conformance": conformance,
    "parser": parser_cost,
    "plain": plain_streams,
    "survival": survival,
    "comply": comply,
    "embeddings": embeddings_per_s_ratio,
    "clients": tried,
}

if __name__ == "__main__":
    bench(
        "agents",
        "Measure what agents need: parsing, structured output, compliance, embeddings, clients.",
        report,
        PARTS,
    )
