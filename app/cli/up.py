"""`xylem up` and `xylem serve`: the whole system under one supervisor, one Ctrl-C."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.report import refuse
from app.cli.start import FlowerPort, Host, Port, RedisUrl, Verbose, Wishes, installed_engine, settings_of, start

if TYPE_CHECKING:
    from app.settings import Settings

_MODEL = (
    "A folder, organisation/name or hf://… of the hub, s3://…, or a model that comes with Xylem: smollm2, or shapes "
    "(one that sees, and one that paints)."
)


class EngineName(StrEnum):
    vllm = "vllm"
    sglang = "sglang"
    trtllm = "trtllm"
    mock = "mock"


def up(
    engine: Annotated[EngineName | None, typer.Option(help="Engine of the built-in pool; vllm if not given.")] = None,
    model: Annotated[str | None, typer.Option(help=f"Model of the built-in pools. {_MODEL}")] = None,
    workers: Annotated[int, typer.Option(min=0, help="Workers of each pool.")] = 1,
    host: Host = None,
    port: Port = None,
    flower_port: FlowerPort = 5555,
    pools: Annotated[
        Path | None, typer.Option(help="Your pools file, not the built-in pool [XYLEM_POOLS_FILE].")
    ] = None,
    redis: RedisUrl = None,
    planner: Annotated[
        bool, typer.Option("--planner", help="Start and end workers with the load, within `scale` of your pools file.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Start Valkey, the API, workers and Flower; stop them all on Ctrl-C."""
    if pools and (engine or model):
        refuse("--engine and --model are for the built-in pools; your pools file says what each pool has")
    settings = settings_of(host=host, port=port, redis_url=redis)
    source: Path | str | None = pools
    if pools is None and engine is None and model is None and "pools_file" in settings.model_fields_set:
        source = settings.pools_file
    if source is None:
        source = _pools_of(model, engine, [], settings)
    start(settings, source, Wishes(workers, flower_port, redis, planner, verbose))


def serve(
    model: Annotated[str, typer.Argument(help=_MODEL)],
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- OPTIONS]", help="The engine's own, after `--`: -- --max-model-len 8192"),
    ] = None,
    engine: Annotated[
        EngineName | None, typer.Option(help="vllm or sglang, by what is installed, if not given; mock needs no model.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=0, help="Workers; one for each GPU, or one, if not given.")] = None,
    host: Host = None,
    port: Port = None,
    flower_port: FlowerPort = 5555,
    redis: RedisUrl = None,
    print_pools: Annotated[
        bool, typer.Option("--print-pools", help="Print the pools file that this stands for, and end.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Serve one model: start everything that `xylem up` starts, and stop it on Ctrl-C."""
    settings = settings_of(host=host, port=port, redis_url=redis)
    text = _pools_of(model, engine or EngineName(installed_engine()), options or [], settings)
    if print_pools:
        typer.echo(text, nl=False)
        return
    start(settings, text, Wishes(workers, flower_port, redis, planner=False, verbose=verbose))


def _pools_of(model: str | None, engine: EngineName | None, options: Sequence[str], settings: "Settings") -> str:
    """The text of a pools file. Raises: typer.Exit."""
    from app.cli.model_pools import SHAPES, model_pools
    from app.errors import SettingsError

    if model == SHAPES and engine not in (None, EngineName.vllm):
        refuse("shapes has engines of its own: vLLM sees, diffusers paints")
    try:
        return model_pools(model, (engine or EngineName.vllm).value, options, settings.home)
    except SettingsError as exc:
        refuse(exc.message)
