"""`xylem up`: the whole system under one supervisor, one Ctrl-C."""

from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.report import err, refuse

if TYPE_CHECKING:
    from app.pools.schema import PoolsFile
    from app.settings import Settings

_NOT_INSTALLED = {  # by engine: its package, and the message where that is missing
    "vllm": ("vllm", "vLLM is not installed: run `make run`, or try `xylem up --engine mock`"),
    "sglang": ("sglang", "SGLang is not installed: run `make run ENGINE=sglang`, or try `xylem up --engine mock`"),
    "diffusers": ("diffusers", "diffusers is not installed: run `make run MODEL=shapes`"),
    "trtllm": ("tensorrt_llm", "TensorRT-LLM is not installed: it needs an NVIDIA GPU, and an environment of its own"),
}


class ModelName(StrEnum):
    smollm2 = "smollm2"
    shapes = "shapes"


class EngineName(StrEnum):
    vllm = "vllm"
    sglang = "sglang"
    mock = "mock"


def up(
    engine: Annotated[EngineName | None, typer.Option(help="Engine of the built-in pool; vllm if not given.")] = None,
    model: Annotated[
        ModelName, typer.Option(help="Model of the built-in pools; shapes: one that sees, and one that paints.")
    ] = ModelName.smollm2,
    workers: Annotated[int, typer.Option(min=0, help="Workers of each pool.")] = 1,
    host: Annotated[str | None, typer.Option(help="Address of the API [XYLEM_HOST, 127.0.0.1].")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port of the API [XYLEM_PORT, 8000].")] = None,
    flower_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of Flower, on this machine only.")] = 5555,
    pools: Annotated[
        Path | None, typer.Option(help="Your pools file, not the built-in pool [XYLEM_POOLS_FILE].")
    ] = None,
    redis: Annotated[
        str | None, typer.Option(envvar="XYLEM_REDIS_URL", help="Your Redis instead of the embedded Valkey.")
    ] = None,
    planner: Annotated[
        bool, typer.Option("--planner", help="Start and end workers with the load, within `scale` of your pools file.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the logs of all processes.")] = False,
) -> None:
    """Start Valkey, the API, workers and Flower; stop them all on Ctrl-C."""
    from app.addresses.redis_url import without_password
    from app.cli import probes, stack
    from app.cli.launch import launch
    from app.cli.models import fetch_all
    from app.cli.supervisor import Died, Interrupted
    from app.errors import SettingsError
    from app.pools.pools_file import load_pools

    shapes = model is ModelName.shapes
    if pools and (engine or shapes):
        refuse("--engine and --model are for the built-in pools; your pools file says what each pool has")
    if shapes and engine not in (None, EngineName.vllm):
        refuse("--model shapes has engines of its own: vLLM sees, diffusers paints")
    settings = _settings(host=host, port=port, redis_url=redis)
    # Before anything is written: the folder may be a running system's.
    _check_ports((settings.host, settings.port, "--port"), ("127.0.0.1", flower_port, "--flower-port"))
    try:
        # One folder per API port: several systems in one checkout don't get in each other's way.
        run_dir = settings.home / "run" / str(settings.port)
        if pools is None and engine is None and not shapes and "pools_file" in settings.model_fields_set:
            pools = settings.pools_file
        if pools is None:
            pools = run_dir / "pools.yaml"
            stack.default_pools("shapes" if shapes else engine or EngineName.vllm, settings.home, pools)
        pools_file = load_pools(pools)
    except SettingsError as exc:
        refuse(exc.message)
    for name, (package, message) in _NOT_INSTALLED.items():
        if any(pool.engine == name for pool in pools_file.pools.values()) and find_spec(package) is None:
            refuse(message)
    if redis and (problem := probes.redis_problem(redis)):
        refuse(f"Redis does not answer at {without_password(redis)}: {problem}", code=1)

    if planner:
        _check_planned(pools_file, pools)
    settings = settings.model_copy(update={"pools_file": pools})
    fetch_all(settings, pools_file.pools.values())
    try:
        launch(
            settings,
            pools_file,
            workers,
            flower_port,
            run_dir,
            embedded=redis is None,
            verbose=verbose,
            planned=planner,
        )
    except Died as exc:
        refuse(str(exc), code=1)
    except Interrupted:
        err.print("stopped")


def _check_planned(pools_file: "PoolsFile", path: Path) -> None:
    if not pools_file.planner.objectives:
        refuse(f"--planner: {path} says nothing to plan for: see planner.objectives, and scale of a pool")
    if wide := [name for name, pool in pools_file.pools.items() if pool.scale and pool.nodes > 1]:
        refuse(f"--planner: {', '.join(wide)}: an engine of several nodes is scaled by Kubernetes only")


def _settings(**options: Any) -> "Settings":
    from app.errors import SettingsError
    from app.settings import load_settings

    try:
        return load_settings(**{key: value for key, value in options.items() if value is not None})
    except SettingsError as exc:
        refuse(exc.message)


def _check_ports(*address: tuple[str, int, str]) -> None:
    from app.cli.probes import port_is_free

    if len({port for _, port, _ in address}) < len(address):
        options = " and ".join(option for *_, option in address)
        refuse(f"{options} are the same port, {address[0][1]}: choose another one for one of them")
    for host, port, option in address:
        if not port_is_free(host, port):
            refuse(f"port {port} of {host} is in use; choose another one with {option}", code=1)
