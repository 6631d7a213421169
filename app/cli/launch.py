"""Starts all processes in order, prints how to use them, and keeps them running until a signal comes."""

import json
import os
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from secrets import token_hex
from typing import Any

from pydantic import SecretStr
from rich.table import Table

from app.addresses.redis_url import without_password
from app.cli import probes, stack
from app.cli.following import Following, reader
from app.cli.report import out
from app.cli.running_system import REDIS_URL, SIGN_IN_KEY, tell_commands
from app.cli.supervisor import Supervisor
from app.ids import PoolId
from app.messages.kinds import Task
from app.planner.rules import scales_of
from app.pools.schema import PoolsFile
from app.settings import Settings

_QUESTION = {"role": "user", "content": "What is the capital of France?"}
_EXAMPLES: Mapping[Task, tuple[str, dict[str, Any]]] = {  # by what a model does: a path, and a body without the model
    "generate": ("/v1/chat/completions", {"stream": True, "temperature": 0, "messages": [_QUESTION]}),
    "embed": ("/v1/embeddings", {"input": "Paris"}),
    "classify": ("/v1/classify", {"input": "Paris"}),
    "image": ("/v1/images/generations", {"prompt": "a red circle", "response_format": "url"}),
    "transcribe": ("/v1/audio/transcriptions", {}),
}


def launch(
    settings: Settings,
    pools_file: PoolsFile,
    workers: Mapping[PoolId, int],
    flower_port: int,
    run_dir: Path,
    *,
    embedded: bool,
    verbose: bool,
    planned: bool = False,
) -> None:
    """Never returns. `workers`: of each pool. `planned`: with a planner, whose decisions are followed.

    Raises: Died, Interrupted, after all processes have ended.
    """
    pools = pools_file.pools
    logs = run_dir / "logs"
    os.umask(0o077)  # what clients sent lies in files of these processes
    run_dir.mkdir(parents=True, exist_ok=True)
    run_dir.chmod(0o700)  # it may have been made before
    if settings.console and not settings.admin_keys:
        key = SecretStr(stack.sign_in_key(run_dir / SIGN_IN_KEY))
        settings = settings.model_copy(update={"sign_in_key": key})
    with Supervisor(logs, verbose=verbose) as supervisor:
        if embedded:
            url = f"redis://:{token_hex(32)}@127.0.0.1:{probes.free_port()}/0"
            settings = settings.model_copy(update={"redis_url": url, "state": settings.state or run_dir})
            valkey = stack.valkey(url, run_dir / "valkey")
            supervisor.start(valkey)
            supervisor.wait_ready(valkey)
        tell_commands(settings, run_dir)
        for path in {pool.path for pool in pools.values() if isinstance(pool.path, Path)}:
            if stack.needs_preparation(path, settings.home):
                supervisor.run_once(stack.model(path), f"preparing {path.name}, about half a minute, once")
        env = stack.environment(settings)
        scales = scales_of(pools_file) if planned else {}
        counts = {pool: scales[pool].most if pool in scales else workers[pool] for pool in pools}
        components = stack.workers(pools, counts, settings, env)
        first = {pool: max(scale.least, min(workers[pool], scale.most)) for pool, scale in scales.items()}
        parts = [
            stack.api(settings, env, logs),
            *chain.from_iterable(each[: first.get(pool, len(each))] for pool, each in components.items()),
            stack.batch(settings, env),
            stack.flower(flower_port, env),
            *([stack.planner(env)] if planned else []),
            *([stack.usage_writer(env)] if settings.records_usage else []),
        ]
        for part in parts:
            supervisor.start(part)
        supervisor.wait_ready(*parts)
        redis_url = str(run_dir / REDIS_URL) if embedded else without_password(settings.redis_url)
        _welcome(settings, flower_port, names_to_try(pools_file), logs, redis_url)
        # An engine that computes prompts for others may have to wait twice as long: for its requests, and for these.
        following = Following(
            supervisor,
            {pool: components[pool] for pool in scales},
            reader(settings, [*scales]),
            2 * settings.drain_timeout_s,
        )
        supervisor.watch(following.look if planned else lambda: None)


def _welcome(settings: Settings, flower_port: int, names: Mapping[str, Task], logs: Path, redis_url: str) -> None:
    """`redis_url`: that of Redis, or the file that has it with its password."""
    url, own = stack.base_url(settings), "://" not in redis_url
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("API", f"{url}/v1")
    if settings.console:
        key = settings.sign_in_key
        table.add_row("console", f"{url}/console" + (f"#admin-key={key.get_secret_value()}" if key else ""))
    table.add_row("docs", f"{url}/docs")
    table.add_row("Flower", f"http://127.0.0.1:{flower_port}")
    table.add_row("Redis", f"its URL is in {redis_url}" if own else redis_url)
    table.add_row("logs", str(logs))
    if settings.require_keys:
        where = f"XYLEM_PORT={settings.port}" if own else f"XYLEM_REDIS_URL={redis_url}"
        table.add_row("keys", f"{where} xylem keys create NAME")
    talk = f"  (or talk: xylem chat --url {url})" if "generate" in names.values() else ""
    out.print("\n", table, f"\n[bold]Try:[/]{talk}\n", sep="")
    bearer = " -H 'Authorization: Bearer KEY'" if settings.require_keys else ""
    for name, task in names.items():
        out.print(f"curl -N {url}{_example(task, name)}{bearer}\n", markup=False, soft_wrap=True)


def names_to_try(pools_file: PoolsFile) -> dict[str, Task]:
    """Names with their tasks: the first model of each task, but none that makes videos, and then all pipelines."""
    pools = [*pools_file.pools.values()]
    first = {pool.task: pool.model for pool in reversed(pools) if not pool.painting.videos}
    models = {first[task]: task for task in sorted(first, key=lambda task: task != "generate")}
    tasks = {pool.model: pool.task for pool in pools}
    return models | {name: tasks[pipeline.stages[-1].model] for name, pipeline in pools_file.pipelines.items()}


def _example(task: Task, model: str) -> str:
    """A request for that model, as curl's arguments."""
    path, fields = _EXAMPLES[task]
    if task == "transcribe":
        return f"{path} -F model={model} -F file=@sound.wav"
    return f"{path} -H 'Content-Type: application/json' -d '{json.dumps({'model': model} | fields)}'"
