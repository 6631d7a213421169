"""The start of a whole system on this machine: what `xylem up` and `xylem serve` check before any process begins."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from app.cli.report import err, refuse

if TYPE_CHECKING:
    from app.pools.findings import Findings
    from app.pools.schema import PoolsFile
    from app.settings import Settings

_NOT_INSTALLED = {  # by engine: its package, and the message where that is missing
    "vllm": ("vllm", "vLLM is not installed: run `xylem install cpu` (or gpu), or try `--engine mock`"),
    "sglang": ("sglang", "SGLang is not installed: run `xylem install sglang`, or try `--engine mock`"),
    "diffusers": ("diffusers", "diffusers is not installed: run `xylem install images`"),
    "omni": ("vllm_omni", "vLLM-Omni is not installed: it needs a GPU, and an environment of its own with vLLM 0.30"),
    "trtllm": ("tensorrt_llm", "TensorRT-LLM is not installed: it needs an NVIDIA GPU, and an environment of its own"),
}
_PORT = {"min": 1, "max": 65535}
Host = Annotated[str | None, typer.Option(help="Address of the API [XYLEM_HOST, 127.0.0.1].")]
Port = Annotated[int | None, typer.Option(**_PORT, help="Port of the API [XYLEM_PORT, 8000].")]
FlowerPort = Annotated[int, typer.Option(**_PORT, help="Port of Flower, on this machine only.")]
RedisUrl = Annotated[
    str | None, typer.Option(envvar="XYLEM_REDIS_URL", help="Your Redis instead of the embedded Valkey.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show the logs of all processes.")]


class Wishes(NamedTuple):
    workers: int | None  # of each pool; None: one for each GPU, or one
    flower_port: int
    redis: str | None  # None: the embedded Valkey
    planner: bool
    verbose: bool


def start(settings: "Settings", pools: Path | str, wishes: Wishes) -> None:
    """Runs the system until Ctrl-C. `pools`: a pools file, or the text of one that is made for this run.

    Raises: typer.Exit.
    """
    from app.addresses.redis_url import without_password
    from app.cli import probes
    from app.cli.gpus import usable_gpus, worker_counts
    from app.cli.launch import launch
    from app.cli.models import fetch_all
    from app.cli.supervisor import Died, Interrupted
    from app.pools.findings import Findings

    # Before anything is written: the folder may be a running system's.
    _check_ports((settings.host, settings.port, "--port"), ("127.0.0.1", wishes.flower_port, "--flower-port"))
    run_dir = settings.run_folder
    if isinstance(pools, str):
        run_dir.mkdir(parents=True, exist_ok=True)
        text, pools = pools, run_dir / "pools.yaml"
        pools.write_text(text)
    findings = Findings(pools)
    tell(findings)
    pools_file = findings.pools_file
    assert pools_file is not None, "it had ended"
    _check_engines(pools_file)
    _check_folders(pools_file, pools, settings.home)
    if wishes.redis and (problem := probes.redis_problem(wishes.redis)):
        refuse(f"Redis does not answer at {without_password(wishes.redis)}: {problem}", code=1)
    if wishes.planner:
        _check_planned(pools_file, pools)
    settings = settings.model_copy(update={"pools_file": pools})
    fetch_all(settings, pools_file.pools.values())
    try:
        launch(
            settings,
            pools_file,
            worker_counts(pools_file.pools, wishes.workers, usable_gpus()),
            wishes.flower_port,
            run_dir,
            embedded=wishes.redis is None,
            verbose=wishes.verbose,
            planned=wishes.planner,
        )
    except Died as exc:
        refuse(str(exc), code=1)
    except Interrupted:
        err.print("stopped")


def tell(findings: "Findings") -> None:
    """Prints warnings. Exits if there are problems."""
    for warning in findings.warnings:
        err.print("[yellow]warning:[/]", end=" ")
        err.print(warning, markup=False, soft_wrap=True)
    for problem in findings.problems[:-1]:
        err.print("[red]xylem:[/]", end=" ")
        err.print(problem, markup=False, soft_wrap=True)
    if findings.problems:
        refuse(findings.problems[-1])


def settings_of(**options: Any) -> "Settings":
    """The settings, those of the command line first. Raises: typer.Exit."""
    from app.errors import SettingsError
    from app.settings import load_settings

    try:
        return load_settings(**{key: value for key, value in options.items() if value is not None})
    except SettingsError as exc:
        refuse(exc.message)


def installed_engine() -> str:
    """vLLM, or SGLang where only that is installed. Raises: typer.Exit."""
    engines = [engine for engine in ("vllm", "sglang") if find_spec(_NOT_INSTALLED[engine][0]) is not None]
    return engines[0] if engines else refuse(f"no engine is installed. {_NOT_INSTALLED['vllm'][1]}")


def _check_engines(pools_file: "PoolsFile") -> None:
    for name, (package, message) in _NOT_INSTALLED.items():
        if any(pool.engine == name for pool in pools_file.pools.values()) and find_spec(package) is None:
            refuse(message)


def _check_folders(pools_file: "PoolsFile", file: Path, home: Path) -> None:
    from app.cli.model_pools import hub_address
    from app.cli.stack import needs_preparation

    for name, pool in pools_file.pools.items():
        if isinstance(pool.path, Path) and not (pool.path.is_dir() or needs_preparation(pool.path, home)):
            hub = hub_address(str(pool.path))
            refuse(f"{file}: pools.{name}.path={pool.path}: no such folder{f'; for the hub: {hub}' if hub else ''}")


def _check_planned(pools_file: "PoolsFile", path: Path) -> None:
    if not pools_file.planner.objectives:
        refuse(f"--planner: {path} says nothing to plan for: see planner.objectives, and scale of a pool")
    if wide := [name for name, pool in pools_file.pools.items() if pool.scale and pool.nodes > 1]:
        refuse(f"--planner: {', '.join(wide)}: an engine of several nodes is scaled by Kubernetes only")


def _check_ports(*address: tuple[str, int, str]) -> None:
    from app.cli.probes import port_is_free

    if len({port for _, port, _ in address}) < len(address):
        options = " and ".join(option for *_, option in address)
        refuse(f"{options} are the same port, {address[0][1]}: choose another one for one of them")
    for host, port, option in address:
        if not port_is_free(host, port):
            refuse(f"port {port} of {host} is in use; choose another one with {option}", code=1)
