"""Reads the pools file (YAML), once per process; what does not parse raises SettingsError naming key and value."""

from pathlib import Path
from typing import Literal

import yaml
from pydantic import ValidationError

from app.endpoints import EndpointName
from app.errors import SettingsError
from app.ids import BATCH_QUEUE, PoolId
from app.messages.kinds import Task
from app.pools.engine_registry import engine_names, is_engine, spanning_engines
from app.pools.schema import Pool, PoolsFile, Stage, Table, alias_problem
from app.pools.yaml_loader import read_yaml
from app.settings import explain

_FILES = ("path", "chat_template", "args_file")  # of a pool, where these are files
# By its task, the endpoint that a model of a pipeline has to be served for.
_SERVES_STAGES: dict[Task, EndpointName] = {"generate": "chat", "transcribe": "transcriptions", "image": "images"}


def load_pools(path: Path) -> PoolsFile:
    """Raises: SettingsError naming the file, the key and the value."""
    try:
        doc = read_yaml(path.read_text())
    except OSError as exc:
        hint = "; name your pools file, or set XYLEM_POOLS_FILE" if isinstance(exc, FileNotFoundError) else ""
        raise SettingsError(f"XYLEM_POOLS_FILE={path}: {exc.strerror}{hint}") from exc
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise SettingsError(f"{path}: not YAML: {exc}") from exc
    if not isinstance(doc, dict):
        raise SettingsError(f"{path}: has to be a mapping with the key 'pools', and is {doc!r}")
    try:
        pools_file = _with_embeddings(_with_places(PoolsFile.model_validate(doc), path.parent))
    except ValidationError as exc:
        raise SettingsError(f"{path}: {explain(exc, '.'.join)}") from exc
    if PoolId(BATCH_QUEUE) in pools_file.pools:
        raise SettingsError(f"{path}: pools.{BATCH_QUEUE}: the name is taken by the batch workers' queue")
    for name, pool in pools_file.pools.items():
        _check_pool(pools_file, f"{path}: pools.{name}", pool)
    for model, select in pools_file.select.items():
        for kind, table in (("prefill", select.prefill), ("decode", select.decode)):
            _check_table(pools_file, f"{path}: select.{model}.{kind}", model, table, prefill=kind == "prefill")
    _check_routing(pools_file, path)
    _check_aliases(pools_file, path)
    _check_pipelines(pools_file, path)
    _check_planner(pools_file, path)
    return pools_file


def _with_places(pools_file: PoolsFile, folder: Path) -> PoolsFile:
    """The pools with their files where they are: `~` is the home, and those beside the pools file come first."""
    pools = {
        name: pool.model_copy(
            update={field: _place(value, folder) for field in _FILES if isinstance(value := getattr(pool, field), Path)}
        )
        for name, pool in pools_file.pools.items()
    }
    return pools_file.model_copy(update={"pools": pools})


def _place(file: Path, folder: Path) -> Path:
    file = file.expanduser()
    beside = folder / file
    return beside.resolve() if not file.is_absolute() and beside.exists() else file


def _with_embeddings(pools_file: PoolsFile) -> PoolsFile:
    """`embeddings` of each pool, where it isn't given."""
    encoder_models = {pool.model for pool in pools_file.pools.values() if pool.role == "encode"}
    pools = {
        name: pool.model_copy(update={"embeddings": pool.role != "encode" and pool.model in encoder_models})
        if pool.embeddings is None
        else pool
        for name, pool in pools_file.pools.items()
    }
    return pools_file.model_copy(update={"pools": pools})


def _check_pool(pools_file: PoolsFile, where: str, pool: Pool) -> None:
    if not is_engine(pool.engine, paints=pool.task == "image"):
        names = ", ".join(engine_names(paints=pool.task == "image"))
        raise SettingsError(f"{where}.engine={pool.engine}: for task {pool.task} there are {names}")
    if pool.engine != "mock" and pool.path is None:
        raise SettingsError(f"{where}.path: engine {pool.engine} needs a model directory")
    if pool.task != "generate" and pool.role != "both":
        raise SettingsError(f"{where}.role={pool.role}: pools of task {pool.task} have no stages")
    of_model = [p for p in pools_file.pools.values() if p.model == pool.model]
    prefilling = {p.engine for p in of_model if p.role == "prefill"}
    if pool.role == "decode" and prefilling and pool.engine not in prefilling:
        raise SettingsError(f"{where}.engine={pool.engine}: takes no KV from {', '.join(prefilling)}")
    if {p.role for p in of_model} <= {"prefill", "encode"}:
        raise SettingsError(f"{where}.role={pool.role}: no other pool of {pool.model} decodes")
    if pool.role == "encode" and pool.embeddings:
        raise SettingsError(f"{where}.embeddings: a pool of role encode makes them")
    if pool.tiers is not None and (pool.task != "generate" or pool.role == "encode"):
        raise SettingsError(f"{where}.tiers: only pools that generate keep KV")
    if pool.peers and (pool.task != "generate" or pool.role != "both"):
        raise SettingsError(f"{where}.peers: only pools that generate, with role both, have them")
    if pool.role == "encode" and pool.data_parallel_size > 1:
        raise SettingsError(f"{where}.data_parallel_size: a pool of role encode has one rank; start more workers")
    if pool.tensor_parallel_size is not None and (pool.engine not in spanning_engines() or pool.task == "image"):
        raise SettingsError(f"{where}.tensor_parallel_size={pool.tensor_parallel_size}: here, `args` says that")
    if pool.nodes > 1:
        _check_nodes(where, pool)


def _check_nodes(where: str, pool: Pool) -> None:
    here = f"{where}.nodes={pool.nodes}"
    if pool.engine not in spanning_engines() or pool.task == "image":
        raise SettingsError(f"{here}: engines that span several hosts are {', '.join(spanning_engines())}")
    # Each needs what is on the leader's host only: pictures that others have encoded, or its store.
    for key in ("embeddings", "tiers"):
        if getattr(pool, key):
            raise SettingsError(f"{here}: without {key}, which an engine on several hosts does not share")
    if pool.role == "encode":
        raise SettingsError(f"{here}: a pool of role encode has one host; start more workers")
    ranks, within = pool.data_parallel_size, pool.tensor_parallel_size or 1
    stages = pool.args.get("pipeline_parallel_size", 1)
    devices = ranks * within * (stages if isinstance(stages, int) else 1)
    if devices % pool.nodes:
        raise SettingsError(
            f"{here}: does not divide the engine's {devices} devices (tensor_parallel_size={within}, "
            f"data_parallel_size={ranks})"
        )
    if ranks > 1 and ranks % pool.nodes:
        raise SettingsError(
            f"{where}.data_parallel_size={ranks}: has to be a multiple of nodes={pool.nodes}, so that each rank is on "
            "one host, or 1; several engines are as good as ranks that span hosts"
        )


def _check_aliases(pools_file: PoolsFile, path: Path) -> None:
    tasks = {pool.model: pool.task for pool in pools_file.pools.values()}
    for name, alias in pools_file.aliases.items():
        if problem := alias_problem(name, alias, tasks):
            raise SettingsError(f"{path}: aliases.{name}: {problem}")


def _check_pipelines(pools_file: PoolsFile, path: Path) -> None:
    by_model = {pool.model: pool for pool in pools_file.pools.values() if pool.role != "encode"}
    for name, pipeline in pools_file.pipelines.items():
        where = f"{path}: pipelines.{name}"
        if name in by_model or name in pools_file.aliases:
            raise SettingsError(f"{where}: there is {'a model' if name in by_model else 'an alias'} of that name")
        for number, stage in enumerate(pipeline.stages):
            here = f"{where}.stages.{number}"
            if stage.model not in by_model:
                kinds = (
                    (pools_file.pipelines, "a pipeline"),
                    (pools_file.aliases, "an alias"),
                    ([stage.model], "no model"),
                )
                what = next(what for names, what in kinds if stage.model in names)
                raise SettingsError(f"{here}.model={stage.model}: is {what} (models: {', '.join(sorted(by_model))})")
        for number, stage in enumerate(pipeline.stages):
            _check_stage(
                f"{where}.stages.{number}", number, [by_model[stage.model] for stage in pipeline.stages], stage
            )


def _check_planner(pools_file: PoolsFile, path: Path) -> None:
    planned_models = {pool.model for pool in pools_file.pools.values() if pool.scale is not None}
    for model in pools_file.planner.objectives:
        if model not in planned_models:
            raise SettingsError(f"{path}: planner.objectives.{model}: no pool of that model has the key scale")
    for name, pool in pools_file.pools.items():
        where = f"{path}: pools.{name}.scale"
        if pool.scale is not None and (pool.task != "generate" or pool.role == "encode"):
            raise SettingsError(f"{where}: only pools that generate are planned")
        if pool.scale is not None and pool.model not in pools_file.planner.objectives:
            raise SettingsError(f"{where}: planner.objectives has no {pool.model}")
        if pool.scale is not None and pool.scale.hosts and pool.nodes > 1:
            raise SettingsError(f"{where}.hosts: an engine of nodes={pool.nodes} is not started over SSH")


def _check_stage(where: str, number: int, pools: list[Pool], stage: Stage) -> None:
    """`number`: of the stage among `pools`, one of each stage."""
    pool, last = pools[number], number == len(pools) - 1
    fits: tuple[Task, ...] = ("generate",)
    if number == 0:
        fits = ("transcribe", "generate")
    elif last and pools[0].task != "transcribe":  # a request for pictures has no sound
        fits = ("generate", "image")
    if pool.task not in fits or pool.painting.videos:
        does = "paints videos" if pool.painting.videos else f"its task is {pool.task}"
        raise SettingsError(f"{where}.model={stage.model}: {does}, and this stage's has to be {' or '.join(fits)}")
    unused_fields = {"show"} if last else set[str]()
    if pool.task == "transcribe":
        unused_fields |= {"template", "instructions", "max_tokens"}
    elif pool.task == "image":
        unused_fields |= {"instructions", "max_tokens"}
    elif last:
        unused_fields |= {"max_tokens"}  # the request has its own
    for field in sorted(stage.model_fields_set & unused_fields):
        raise SettingsError(f"{where}.{field}={getattr(stage, field)}: has no effect in this stage")
    endpoint = _SERVES_STAGES[pool.task]
    if pool.endpoints is not None and endpoint not in pool.endpoints:
        raise SettingsError(f"{where}.model={stage.model}: the endpoints of its pool are without {endpoint}")


def _check_table(pools_file: PoolsFile, where: str, model: str, table: Table | None, *, prefill: bool) -> None:
    for name in (name for row in table.pools for name in row) if table else ():
        pool = pools_file.pools.get(PoolId(name))
        if pool is None or pool.model != model:
            raise SettingsError(f"{where}.pools={name!r}: no pool of {model}")
        if pool.role == "encode" or (pool.role == "prefill") != prefill:
            raise SettingsError(f"{where}.pools={name!r}: its role is {pool.role}")


def _check_routing(pools_file: PoolsFile, path: Path) -> None:
    """Pools that share their requests need the same routing."""
    first: dict[tuple[str, str], tuple[PoolId, Pool]] = {}
    for name, pool in pools_file.pools.items():
        if pool.role == "encode":
            continue
        kind: Literal["prefill", "decode"] = "prefill" if pool.role == "prefill" else "decode"
        other_name, other = first.setdefault((pool.model, kind), (name, pool))
        select = pools_file.select.get(pool.model)
        if pool.routing != other.routing and not (select and getattr(select, kind)):
            raise SettingsError(
                f"{path}: pools.{name}.routing: differs from {other_name}'s, which serves the same model: "
                f"say under select.{pool.model}.{kind} when to use which"
            )
