"""`make chaos`: faults under load; a table, and one line of JSON.

`recovery_…` is the longest pause that a fault made in any answer. While Redis, or every worker, is away by our doing,
nobody can get on: that time is the fault's own length, which isn't counted but shown (`lasted`, `longest_fault_s`).
Connections that forward nothing and close nothing are counted apart (`recovery_silent_p99_s`, null if there were none):
only the time without a reply tells of them.

Faults submit `batches`, too, each with a line that kills the batch workers that begin it (`batch_deaths`). That line
has to fail, and the others to be answered once: else they are `lost`, `duplicated` or `failed`, as requests are.
"""

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.chaos.faults import NAMES, plan
from tests.chaos.fleet import Fleet, pools
from tests.chaos.load import make_cases, make_picture_cases, make_structured_cases
from tests.chaos.run import Report, percentile, run


def main() -> int:
    """0 when nothing was lost, doubled or left behind, and the prefix index says what is there."""
    options = argparse.ArgumentParser(prog="make chaos")
    options.add_argument("--faults", type=int, default=210)
    options.add_argument("--only", action="append", choices=NAMES, help="a fault; may be repeated")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--clients", type=int, default=12)
    options.add_argument("--keep", type=Path, help="a folder for the logs, which else are deleted")
    arguments = options.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as by Ctrl-C, the fleet ends
    out = Console(file=sys.stderr)
    with tempfile.TemporaryDirectory() as scratch:
        directory = arguments.keep or Path(scratch)
        pool_configs = pools(directory.absolute() / "kv")
        fleet = Fleet(directory / "fleet", pool_configs, forks=False, usage=True, proxied=True, batch_workers=2)
        with fleet, out.status("starting") as status:
            faults = plan(arguments.faults, random.Random(arguments.seed), arguments.only or NAMES)
            rng = random.Random(arguments.seed)
            cases = make_cases("mock", 24, rng) + make_structured_cases("mock", 9, rng)
            cases += make_picture_cases("mock", 9, rng)

            def tell(number: int, fault: str, took_s: float) -> None:
                out.print(f"{number:4}  {fault:32} {took_s:6.2f} s")
                status.update(f"{number} of {arguments.faults} faults")

            report = asyncio.run(run(fleet, cases, faults, seed=arguments.seed, clients=arguments.clients, tell=tell))
        report.leaked_processes = len(fleet.left_behind())
    show(report, out)
    sys.stdout.write(json.dumps(as_json(report)) + "\n")
    return int(
        bool(report.bad or report.leaked_processes or report.leaked_blocks or report.index.wrong or report.usage.wrong)
    )


def show(report: Report, out: Console, title: str = "Faults under load", what: str = "fault") -> None:
    table = Table(what, "times", "lasted", "recovery p50", "worst", title=title)
    for fault, took in sorted(report.by_fault.items()):
        duration = f"{report.lasted_s[fault]:.2f} s" if report.lasted_s[fault] else ""
        table.add_row(fault, str(len(took)), duration, f"{percentile(took, 0.5):.2f} s", f"{max(took):.2f} s")
    out.print(table)
    for bad in (*report.bad[:20], *report.index.wrong[:20], *report.usage.wrong[:20]):
        out.print(bad, markup=False, style="red")
    if report.index.claims:
        out.print(f"The index claims {report.index.claims} blocks; of {len(report.index.wrong)} it is wrong.")
    out.print(f"{report.restarted} requests began anew after the death of their API replica, {report.resumed} resumed.")


def as_json(report: Report) -> dict[str, float | None]:
    return {
        "faults": len(report.recovery_s) + len(report.silent_s),
        "requests": report.requests,
        "lost": report.lost,
        "duplicated": report.duplicated,
        "failed": report.failed,
        "batches": report.batches,
        "batch_deaths": report.batch_deaths,
        "recovery_p50_s": round(percentile(report.recovery_s, 0.5), 3),
        "recovery_p99_s": round(percentile(report.recovery_s, 0.99), 3),
        "recovery_silent_p99_s": round(percentile(report.silent_s, 0.99), 3) if report.silent_s else None,
        "longest_fault_s": round(max(report.lasted_s.values(), default=0.0), 3),
        "leaked_processes": report.leaked_processes,
        "leaked_blocks": report.leaked_blocks,
        "index_claims": report.index.claims,
        "index_wrong": len(report.index.wrong),
        "usage_answers": report.usage.answers,
        "usage_error": report.usage.error,
    }


if __name__ == "__main__":
    sys.exit(main())
