"""The entry point of `xylem`."""

import os
from importlib.metadata import version
from typing import Annotated

import typer

from app.cli.api import api
from app.cli.assets import assets
from app.cli.batch import batch
from app.cli.chat import chat
from app.cli.check import check
from app.cli.convert import convert
from app.cli.doctor import doctor
from app.cli.files import files
from app.cli.install import install
from app.cli.keys import keys
from app.cli.lora import lora
from app.cli.models import models, pull
from app.cli.planner import planner
from app.cli.record import record
from app.cli.replay import replay
from app.cli.report import log_to_stderr
from app.cli.tenants import tenants
from app.cli.top import top
from app.cli.up import serve, up
from app.cli.usage_commands import usage
from app.cli.worker import worker

cli = typer.Typer(
    name="xylem",
    help="Distributed LLM inference on FastAPI, Celery, Redis and Flower. Start with: xylem serve MODEL, or xylem up",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def show_version() -> None:
    """Show the version."""
    typer.echo(version("xylem-serve"))


def _show_version(wanted: bool) -> None:
    if wanted:
        show_version()
        raise typer.Exit


@cli.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of `xylem` itself."""
    log_to_stderr()


cli.command()(serve)
cli.command()(up)
cli.command()(chat)
cli.command()(top)
cli.command()(check)
cli.command()(doctor)
cli.command()(install)
cli.command()(api)
cli.command()(pull)
cli.command()(models)
cli.command()(convert)
cli.command()(assets)
cli.add_typer(keys)
cli.add_typer(tenants)
cli.add_typer(batch)
cli.add_typer(files)
cli.add_typer(lora)
cli.add_typer(planner)
cli.add_typer(usage)
cli.command()(record)
cli.command()(replay)
cli.command("version")(show_version)
cli.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(worker)


def main() -> None:
    # What this starts finds its modules where this process has, and not in the working folder.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    cli()
