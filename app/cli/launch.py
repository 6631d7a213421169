"""Starts all processes in order, prints how to use them, and keeps them running until a signal comes."""

import json
from collections.abc import Mapping
from pathlib import Path

from rich.table import Table

from app.cli import probes, stack
from app.cli.report import out
from app.cli.supervisor import Supervisor
from app.ids import PoolId
from app.pools import Pool
from app.redis_url import without_password
from app.settings import Settings


def launch(
    settings: Settings,
    pools: Mapping[PoolId, Pool],
    workers: int,
    flower_port: int,
    run_dir: Path,
    *,
    embedded: bool,
    verbose: bool,
) -> None:
    """Never returns. Raises: Died, Interrupted, after all processes have ended."""
    logs = run_dir / "logs"
    with Supervisor(logs, verbose=verbose) as supervisor:
        if embedded:
            port = probes.free_port()
            settings = settings.model_copy(update={"redis_url": f"redis://127.0.0.1:{port}/0"})
            valkey = stack.valkey(port, run_dir / "valkey")
            supervisor.start(valkey)
            supervisor.wait_ready(valkey)
        for path in {pool.path for pool in pools.values() if isinstance(pool.path, Path)}:
            if stack.needs_preparation(path, settings.home):
                supervisor.run_once(stack.model(path), f"preparing {path.name}, about half a minute, once")
        env = stack.environment(settings)
        parts = [
            stack.api(settings, env),
            *stack.workers(pools, workers, settings, env),
            stack.batch(settings, env),
            stack.flower(flower_port, env),
        ]
        for part in parts:
            supervisor.start(part)
        supervisor.wait_ready(*parts)
        _welcome(settings, flower_port, next(iter(pools.values())).model, logs)
        supervisor.watch()


def _welcome(settings: Settings, flower_port: int, model: str, logs: Path) -> None:
    url, redis_url = stack.base_url(settings), without_password(settings.redis_url)
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("API", f"{url}/v1")
    table.add_row("docs", f"{url}/docs")
    table.add_row("Flower", f"http://127.0.0.1:{flower_port}")
    table.add_row("Redis", redis_url)
    table.add_row("logs", str(logs))
    if settings.require_keys:
        table.add_row("keys", f"XYLEM_REDIS_URL={redis_url} xylem keys create NAME")
    out.print("\n", table, f"\n[bold]Try:[/]  (or talk: xylem chat --url {url})\n", sep="")
    message = {"role": "user", "content": "What is the capital of France?"}
    body = json.dumps({"model": model, "stream": True, "temperature": 0, "messages": [message]})
    key = "-H 'Authorization: Bearer KEY' " if settings.require_keys else ""
    curl = f"curl -N {url}/v1/chat/completions {key}-H 'Content-Type: application/json' -d '{body}'\n"
    out.print(curl, markup=False, soft_wrap=True)
