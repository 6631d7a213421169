"""Checks of running processes, each quick and without raising."""

import socket

import httpx
import msgspec
import redis

from app.addresses.redis_url import cluster
from app.ids import PoolId
from app.keys import Keys
from app.messages.lease import decode_lease
from app.store import sync_client

_QUICK_S = 1.0


def port_is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def http_ok(url: str) -> bool:
    """Whether GET answers 2xx, without proxies."""
    try:
        return httpx.get(url, timeout=_QUICK_S, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def redis_problem(url: str) -> str | None:
    """The reason why Redis does not answer there, or None."""
    try:
        with sync_client(url, _QUICK_S) as client:
            client.ping()
    except (redis.RedisError, OSError, ValueError) as exc:
        return str(exc).partition(" : <")[0] or type(exc).__name__  # redis-py adds pages about each Sentinel
    return None


def _keys(url: str, deployment: str) -> Keys:
    return Keys(deployment, clustered=cluster(url) is not None)


def leased_pids(url: str, deployment: str, pool: PoolId) -> set[int]:
    """The ids of the processes that are ready: they hold a lease as workers of the pool."""
    keys = _keys(url, deployment)
    try:
        with sync_client(url, _QUICK_S, keys.home) as client:
            members = client.hkeys(keys.pool(pool))
            leases = client.mget([keys.worker(m.decode()) for m in members]) if members else []
        return {decode_lease(lease).worker.pid for lease in leases if lease}
    except (redis.RedisError, OSError, msgspec.DecodeError):  # the last: a lease of an older version, soon expired
        return set()


def has_batch_leader(url: str, deployment: str) -> bool:
    """Whether some batch worker is the leader."""
    keys = _keys(url, deployment)
    try:
        with sync_client(url, _QUICK_S, keys.home) as client:
            return bool(client.exists(keys.batch_leader()))
    except (redis.RedisError, OSError):
        return False
