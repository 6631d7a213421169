"""Serves pools: a replica and workers that are ready, as the fixture of a module or for a block."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from openai import BadRequestError, OpenAI

from tests.stack import Stack, free_port, leases, pid_of_worker, stack, wait_until

Pools = dict[str, dict[str, Any]]


def begin(s: Stack, workers: Mapping[str, str] | None = None, within_s: float = 90, **env: str) -> None:
    """Starts a replica, unless `api` runs, and workers, and waits until all are ready.

    `workers`: their pools, by name; else one of each pool, called like it. `env`: theirs.
    """
    s.workers = dict(workers) if workers is not None else {pool: pool for pool in s.pools}
    revive(s, within_s, **env)


def begin_on_cores(s: Stack, within_s: float = 300) -> None:
    """Begins with a real engine of each pool, each on a core of its own: together they would slow each other down."""
    cores = cycle(sorted(psutil.Process().cpu_affinity() or ()))
    for pool in s.pools:
        s.worker(pool, pool, VLLM_CPU_OMP_THREADS_BIND=str(next(cores)))
    begin(s, within_s=within_s)


def revive(s: Stack, within_s: float = 90, **env: str) -> None:
    """Starts `api` and those of the stack's workers that don't run; waits until all are ready, and no other lives."""
    if not s.runs("api"):
        s.api()
    for name, pool in s.workers.items():
        if not s.runs(name):
            s.worker(pool, name, **env)
    live = Counter(pool for pool in s.workers.values() if pool in s.pools)
    models: Counter[str] = Counter()
    for pool, count in live.items():
        if s.pools[pool].get("role") not in ("prefill", "encode"):
            models[s.pools[pool]["model"]] += count
    if live:
        wait_until(lambda: Counter(lease.worker.pool for lease in leases(s)) == live, "all workers live", within_s)
    wait_until(s.ready, "the API listens", within_s)
    for model, count in models.items():
        s.wait_ready(count, model, within_s)


def replica_of(s: Stack, name: str, port: int = 0, **env: str) -> str:
    """The URL of another replica, which listens and knows of as many workers as the first, if that one is there."""
    port = port or free_port()
    url = f"http://127.0.0.1:{port}"
    s.api(name, port, **env)
    wait_until(lambda: (now := s.ready(url)) and now["workers"] == (s.ready() or now)["workers"], f"{name} listens", 60)
    return url


@contextmanager
def serving(
    redis_url: str, path: Path, pools: Pools, workers: Mapping[str, str] | None = None, more: Any = None, **env: str
) -> Iterator[Stack]:
    """A stack that has begun, and whose logs have no traceback at the end.

    `chat_template`, here, is the template. `more`: the rest of the pools file.
    """
    pools = {name: _kept(pool, path / f"{name}.jinja") for name, pool in pools.items()}
    with stack(redis_url, path, pools, **{"XYLEM_DEPLOYMENT": path.name} | env) as s:
        s.pools_file.write_text(yaml.safe_dump({"pools": pools, **(more or {})}))
        begin(s, workers)
        yield s
        for name in s.names:
            assert "Traceback" not in s.log(name), name


def _kept(pool: dict[str, Any], file: Path) -> dict[str, Any]:
    if "chat_template" not in pool:
        return pool
    file.write_text(pool["chat_template"])
    return pool | {"chat_template": str(file)}


def served_by(pools: Pools | Callable[[Path], Pools], *args: Any, **options: Any) -> Any:
    """The fixture `served` of a module, which gives its deployment the name; other arguments are those of `serving`.

    `{path}` in the environment is the stack's folder.
    """

    @pytest.fixture(scope="module")
    def served(
        request: pytest.FixtureRequest, valkey_url: str, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Stack]:
        name = request.module.__name__.rpartition(".test_")[2].replace("_", "-")
        path = tmp_path_factory.mktemp(name)
        own = {key: value.format(path=path) if isinstance(value, str) else value for key, value in options.items()}
        own = {"XYLEM_DEPLOYMENT": name} | own
        with serving(valkey_url, path, pools(path) if callable(pools) else pools, *args, **own) as s:
            yield s

    return served


@contextmanager
def standing_still(*pids: int) -> Iterator[None]:
    """Processes are stopped for a while, if they don't end meanwhile; their connections stay."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def outlived(s: Stack, pool: str, stream: Iterable[Any]) -> tuple[str, str]:
    """The text of a chat's or completion's stream whose worker is killed amid it, and its id."""

    def text_of(chunk: Any) -> str:
        choice = chunk.choices[0] if chunk.choices else None
        return getattr(choice, "text", None) or getattr(getattr(choice, "delta", None), "content", None) or ""

    chunks, text = iter(stream), ""
    while len(text) <= 60:
        chunk = next(chunks)
        text += text_of(chunk)
    os.kill(pid_of_worker(s, pool, chunk.id), signal.SIGKILL)
    return text + "".join(map(text_of, chunks)), chunk.id


@contextmanager
def refused(param: str, match: str | None = None) -> Iterator[None]:
    """Expects that OpenAI's client is told that this parameter is wrong."""
    with pytest.raises(BadRequestError, match=match) as exc_info:
        yield
    assert exc_info.value.param == param


def client_of(url: str, **options: Any) -> OpenAI:
    """A client that asks once."""
    return OpenAI(**{"base_url": f"{url}/v1", "api_key": "none", "max_retries": 0, "timeout": 300} | options)
