"""`make clients`: runs clients, unmodified, and examples against a mock engine; a table, and one line of JSON."""

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from ops.bench.parts import table
from ops.bench.processes import Unavailable
from ops.bench.session import measuring
from ops.clients.trial import Outcome, figures, try_all
from ops.clients.tried import CLIENTS, EXAMPLES

ALL = (*CLIENTS, *EXAMPLES)


def main() -> None:
    options = argparse.ArgumentParser(prog="make clients", description=__doc__)
    options.add_argument("--only", action="append", choices=[c.script for c in ALL], help="may be repeated")
    only = options.parse_args().only
    clients = [client for client in ALL if not only or client.script in only]
    with measuring("clients", Path(".xylem/clients")) as (out_dir, progress, task):
        try:
            outcomes = try_all(clients, out_dir, lambda what: progress.update(task, description=what))
        except Unavailable as exc:
            sys.exit(f"no server: {exc}")
    _show(outcomes, out_dir)
    result = figures(outcomes)
    print(json.dumps({name: value for name, value in result.items() if name != "client_failures"}), flush=True)
    sys.exit(bool(result["clients_failed"]))


def _show(outcomes: list[Outcome], out_dir: Path) -> None:
    result_table = table("Clients", "client", "version", "tried", "", "s", left=("client", "version", "tried"))
    for outcome in outcomes:
        client, verdict = outcome.client, "[red]failed[/]" if outcome.failure else "[green]works[/]"
        result_table.add_row(client.package, client.version, client.tried, verdict, f"{outcome.seconds:.0f}")
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(result_table)
    for outcome in outcomes:
        if outcome.failure:
            console.print(f"{outcome.client.package}: {outcome.failure}", style="yellow", markup=False)
    console.print(f"what they said, and logs: {out_dir}", markup=False)


if __name__ == "__main__":
    main()
