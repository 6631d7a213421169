"""Builds the redis-py clients, for all work off the hot path."""

from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool
from redis.backoff import ExponentialBackoff

from app.addresses.redis_url import Cluster, Sentinels, cluster, encryption, sentinel_options, sentinels
from app.store.cluster_nodes import ClusterPool, address_of, read_slots
from app.store.lost_connections import losable


class _MasterPool(SentinelConnectionPool):
    """A pool whose new connections ask the Sentinels where the master is; one that has become a replica is closed."""

    async def get_master_address(self) -> Any:
        try:
            return await super().get_master_address()  # type: ignore[no-untyped-call]
        except MasterNotFoundError:  # its text is pages long
            raise redis.exceptions.ConnectionError(f"no Sentinel knows a living {self.service_name!r}") from None

    async def aclose(self) -> None:
        await super().aclose()
        await self.sentinel_manager.aclose()


class _BriefMasterPool(redis.sentinel.SentinelConnectionPool):
    """The pool of a client that asks once: closes its connections to the Sentinels, too."""

    def disconnect(self, inuse_connections: bool = True) -> None:
        super().disconnect(inuse_connections)
        for sentinel in self.sentinel_manager.sentinels:
            sentinel.close()


def _options() -> dict[str, Any]:
    return {
        "health_check_interval": 15,
        "socket_connect_timeout": 2,
        "protocol": 2,
        # A first failure is often an idle connection closed by the server, or a former master that is a replica now:
        # try again, but not for long, since a request may wait for the answer.
        "retry_on_error": [redis.exceptions.ConnectionError, redis.exceptions.ReadOnlyError],
    }


def async_client(url: str, home: str = "", *, socket_timeout: float = 5.0) -> "redis.asyncio.Redis":
    """`home`: in a cluster, a key that has the slot of all that the client is asked; its Wire is asked for others, too.

    `socket_timeout` in seconds: longer than any of its commands waits on purpose.
    """
    retry = Retry(ExponentialBackoff(cap=0.2, base=0.02), 3)
    options = _options() | {"socket_timeout": socket_timeout, "retry": retry}
    if not url.startswith("unix://"):
        options["socket_keepalive"] = True
    if (nodes := cluster(url)) is not None:
        return losable(redis.asyncio.Redis.from_pool(ClusterPool(nodes, home, **options)))
    config = sentinels(url)
    if config is None:
        return losable(redis.asyncio.Redis.from_url(url, **options))
    manager = Sentinel(config.nodes, sentinel_kwargs=sentinel_options(config))  # type: ignore[no-untyped-call]
    for sentinel in manager.sentinels:
        losable(sentinel)
    pool = _MasterPool(config.master, manager, **_access(config), **options)  # type: ignore[no-untyped-call]
    return losable(redis.asyncio.Redis.from_pool(pool))


def sync_client(url: str, timeout_s: float, home: str = "") -> "redis.Redis":
    """A client for a caller that asks once and has no time to try again. `home`: as above; none: any node.

    Raises: redis.exceptions.ConnectionError, in a cluster.
    """
    options: dict[str, Any] = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s, "retry": None}
    if (nodes := cluster(url)) is not None:
        return _of_cluster(nodes, home, options)
    config = sentinels(url)
    if config is None:
        return redis.Redis.from_url(url, **options)
    manager = redis.Sentinel(config.nodes, sentinel_kwargs=sentinel_options(config))  # type: ignore[no-untyped-call]
    pool: Any = _BriefMasterPool
    client: redis.Redis = manager.master_for(config.master, connection_pool_class=pool, **_access(config), **options)  # type: ignore[no-untyped-call]
    return client


def _of_cluster(nodes: Cluster, home: str, options: dict[str, Any]) -> "redis.Redis":
    """Raises: redis.exceptions.ConnectionError."""
    access = {"username": nodes.user, "password": nodes.password, **encryption(nodes), **options}
    why: Exception | None = None
    for host, port in nodes.nodes:
        try:
            with redis.Redis(host=host, port=port, **access) as client:
                slots = read_slots(client.execute_command("CLUSTER SLOTS"), host)
        except (redis.RedisError, OSError) as exc:
            why = exc
            continue
        address = address_of(slots, home) if home else (host, port)
        return redis.Redis(host=address[0], port=address[1], **access)
    raise redis.exceptions.ConnectionError(f"no node of the cluster answers: {why}")


def _access(sentinels: Sentinels) -> dict[str, Any]:
    return {"db": sentinels.db, "username": sentinels.user, "password": sentinels.password, **encryption(sentinels)}
