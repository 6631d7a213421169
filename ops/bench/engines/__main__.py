"""`make bench NAME=engines`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ops.bench.engines import report
from ops.bench.engines.adapter_load import fleet_load
from ops.bench.engines.apart import apart
from ops.bench.engines.contract import contract
from ops.bench.engines.migration import migration
from ops.bench.engines.swap import swap
from ops.bench.engines.throughput import lora_throughput, sglang_throughput
from ops.bench.parts import run_parts


class Part(StrEnum):
    sglang = "sglang"
    apart = "apart"
    contract = "contract"
    lora = "lora"
    load = "load"
    swap = "swap"
    migrate = "migrate"


def main(
    quick: Annotated[bool, typer.Option(envvar="QUICK", help="Fewer and shorter runs: under ten minutes.")] = False,
    only: Annotated[list[Part] | None, typer.Option(help="Run these parts only.")] = None,
    out: Annotated[Path, typer.Option(help="Where reports go.")] = Path(".xylem/bench"),
) -> None:
    """Measure the engines behind the whole system: speed, equal answers, adapters, migration."""
    parts = {
        Part.sglang: sglang_throughput, Part.apart: apart, Part.contract: contract, Part.lora: lora_throughput,
        Part.load: fleet_load, Part.swap: swap, Part.migrate: migration,
    }  # fmt: skip
    run_parts("engines", report, parts, only or list(Part), quick, out)


if __name__ == "__main__":
    typer.run(main)
