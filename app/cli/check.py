"""`xylem check`: what is wrong with a pools file, and what in it changes nothing."""

from pathlib import Path
from typing import Annotated

import typer

from app.cli.report import out

SCHEMA = Path(__file__).parent / "pools" / "schema.json"  # `make reference` writes it


def check(
    pools: Annotated[Path | None, typer.Argument(help="The pools file; that of XYLEM_POOLS_FILE if not given.")] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of pools files, for editors, and end.")
    ] = False,
) -> None:
    """Check a pools file without starting anything. Exit code 2 if something is wrong with it."""
    from app.cli.start import settings_of, tell
    from app.pools.findings import Findings

    if schema:
        typer.echo(SCHEMA.read_text(), nl=False)
        return
    findings = Findings(pools or settings_of().pools_file)
    tell(findings)
    out.print(f"{findings.path} is right" if not findings.warnings else f"{findings.path} can be served", markup=False)
