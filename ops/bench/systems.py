"""Starting and stopping the systems under test. Each is a context manager that yields when it can serve."""

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import redis
import yaml

from app.cli import stack
from app.cli.probes import has_batch_leader
from app.ids import BATCH_QUEUE, PoolId
from app.keys import Keys
from app.store import Wire, async_client
from ops.bench.load import System
from ops.bench.processes import process, wait_until
from tests.stack import free_port

_BIN = Path(sys.executable).parent
_POOL = "decode-pool-a"
_ENGINE_START_S = 480.0
_SUBSTITUTES = Path(__file__).parent / "engines/substitutes"
_ENGINE_ENV = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


def xylem(
    run_dir: Path,
    pool: Mapping[str, Any],
    workers: int,
    root: Path | None = None,
    more_env: Mapping[str, str] | None = None,
) -> AbstractContextManager[System]:
    """`workers` of one pool; `pool` is an entry of the pools file; others as in `fleet`. Raises: Unavailable."""
    return fleet(run_dir, {_POOL: pool}, {_POOL: workers}, more_env=more_env, root=root)


@contextmanager
def fleet(
    run_dir: Path,
    pools: Mapping[str, Mapping[str, Any]],
    workers: Mapping[str, int],
    batch: int = 0,
    more_env: Mapping[str, str] | None = None,
    root: Path | None = None,
) -> Iterator[System]:
    """Valkey, one API process and so many Celery workers of each pool: as `xylem up`, without Flower.

    `batch`: so many batch workers. `root`: another tree whose code runs. The system's model is the first pool's.
    Raises: Unavailable.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    port, redis_port = free_port(), free_port()
    pools_file = run_dir / "pools.yaml"
    pools_file.write_text(yaml.safe_dump({"pools": {name: dict(pool) for name, pool in pools.items()}}))
    env = {
        **_ENGINE_ENV,
        "XYLEM_REDIS_URL": f"redis://127.0.0.1:{redis_port}/0",
        "XYLEM_PORT": str(port),
        "XYLEM_POOLS_FILE": str(pools_file),
        "XYLEM_HOME": str(run_dir),
        "XYLEM_LOG_LEVEL": "warning",
        **({} if root is None else {"PYTHONPATH": str(root)}),
        **(more_env or {}),
    }
    celery = [str(_BIN / "celery"), "-A", "app", "worker", "-Q"]
    with ExitStack() as up:
        server, store = up.enter_context(redis_server(run_dir, redis_port))
        queues = [(pool, run_dir / f"worker-{pool}-{i}.log") for pool, n in workers.items() for i in range(n)]
        engines = {log: up.enter_context(process([*celery, pool], log, env, root)) for pool, log in queues}
        api = up.enter_context(process([str(_BIN / "xylem"), "api"], run_dir / "api.log", env, root))
        names = [run_dir / f"batch-{i}.log" for i in range(batch)]
        batches = {log: up.enter_context(process([*celery, BATCH_QUEUE], log, env, root)) for log in names}
        members = {Keys("xylem").pool(PoolId(pool)): n for pool, n in workers.items()}
        complete = lambda: _answers(store) and all(store.hlen(key) == n for key, n in members.items())  # noqa: E731 (short)
        wait_until(complete, _ENGINE_START_S, engines)
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: _get(f"{url}/ready") is not None, 30, {run_dir / "api.log": api})
        wait_until(lambda: not batch or has_batch_leader(env["XYLEM_REDIS_URL"], "xylem"), 30, batches)
        watch = {"api": [api.pid], "workers": [e.pid for e in engines.values()], "redis": [server.pid]}
        if batch:
            watch["batch"] = [b.pid for b in batches.values()]
        yield System("xylem", url, next(iter(pools.values()))["model"], watch, redis_url=env["XYLEM_REDIS_URL"])


@contextmanager
def redis_server(directory: Path, port: int) -> "Iterator[tuple[subprocess.Popen[bytes], redis.Redis]]":
    """The embedded Valkey, empty, and a client. Raises: Unavailable."""
    log, store = directory / "valkey.log", redis.Redis(port=port)
    with process(stack.valkey(f"redis://127.0.0.1:{port}/0", directory / "valkey").argv, log) as server:
        wait_until(lambda: _answers(store), 10, {log: server})
        yield server, store
    store.close()


@contextmanager
def valkey(directory: Path) -> Iterator[int]:
    """The same alone; yields its port. Raises: Unavailable."""
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    with redis_server(directory, port):
        yield port


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[Any, Wire]]:
    """A client of a Redis here, and our own connection."""
    client = async_client(f"redis://127.0.0.1:{port}/0")
    wire = Wire(client)
    try:
        yield client, wire
    finally:
        wire.close()
        await client.aclose()


def vllm_server(
    run_dir: Path, model_dir: Path, engine_args: Mapping[str, Any], more_env: Mapping[str, str] | None = None
) -> AbstractContextManager[System]:
    """vLLM's own OpenAI server. `engine_args` as in the pools file. Raises: Unavailable."""
    return _own_server(
        "vllm", "vllm.entrypoints.openai.api_server", "--model", run_dir, model_dir, engine_args, more_env
    )


def sglang_server(
    run_dir: Path, model_dir: Path, engine_args: Mapping[str, Any], more_env: Mapping[str, str] | None = None
) -> AbstractContextManager[System]:
    """SGLang's. `engine_args`: fields of its ServerArgs. Raises: Unavailable."""
    env = dict(more_env or {})
    if find_spec("soundfile") is None:  # the server alone imports it, not the engine
        env["PYTHONPATH"] = os.pathsep.join([str(_SUBSTITUTES), os.environ.get("PYTHONPATH", "")])
    return _own_server("sglang", "sglang.launch_server", "--model-path", run_dir, model_dir, engine_args, env)


@contextmanager
def _own_server(
    name: str, module: str, model: str, run_dir: Path, model_dir: Path,
    engine_args: Mapping[str, Any], more_env: Mapping[str, str] | None,
) -> Iterator[System]:  # fmt: skip
    """`model`: the argument for its folder."""
    run_dir.mkdir(parents=True, exist_ok=True)
    port, log = free_port(), run_dir / f"{name}.log"
    command = [sys.executable, "-m", module, "--host=127.0.0.1", f"--port={port}"]
    command += [model, str(model_dir), "--served-model-name", "bench", *_flags(engine_args)]
    with process(command, log, {**_ENGINE_ENV, **(more_env or {})}) as server:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: _get(f"{url}/health") is not None, _ENGINE_START_S, {log: server})
        yield System(name, url, "bench", {"api": [server.pid]})


def _flags(engine_args: Mapping[str, Any]) -> list[str]:
    """{"enforce_eager": True, "lora_modules": ["a=b", "c=d"]} → ["--enforce-eager", "--lora-modules", "a=b", "c=d"]"""
    flags: list[str] = []
    for name, value in engine_args.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, list):
            flags += [flag, *value]
        else:
            flags.append(flag if value is True else f"{flag}={value}")
    return flags


def _answers(store: "redis.Redis") -> bool:
    with suppress(redis.RedisError):
        return bool(store.ping())
    return False


def _get(url: str) -> bytes | None:
    """The body, None for any status but 200. Raises: OSError when the server can't be reached."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            body: bytes = response.read()
            return body
    except urllib.error.HTTPError:
        return None
