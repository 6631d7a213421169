"""`xylem tenants`: teams that share the fleet."""

import typer

from app.cli.erase import erase_tenant, isolate

tenants = typer.Typer(name="tenants", help="Teams that share the fleet.", no_args_is_help=True)
tenants.command("erase")(erase_tenant)
tenants.command()(isolate)
