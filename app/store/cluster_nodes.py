"""Finds which node of a Redis Cluster has which slot, and makes redis-py's connections to the nodes."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from redis.asyncio import Connection, ConnectionPool, Redis, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MovedError, RedisError

from app.addresses.redis_url import Cluster, encryption
from app.store.lost_connections import losable

# A node that doesn't answer must not delay the search: another one can.
_BRIEF: Any = {"socket_timeout": 0.5, "socket_connect_timeout": 0.5, "retry": Retry(NoBackoff(), 0), "protocol": 2}

Address = tuple[str, int]
Slots = Mapping[tuple[int, int], Address]  # first and last slot → the node that has them

_slot_of = lru_cache(4096)(lambda tag: key_slot(tag.encode()))


def slot_of(key: str) -> int:
    """The key's slot as Redis counts it: of what is between the first braces, if anything is there."""
    _, brace, rest = key.partition("{")
    tag, end, _ = rest.partition("}")
    return int(_slot_of(tag if brace and end and tag else key))


def address_of(slots: Slots, key: str) -> Address:
    """Raises: redis.exceptions.ConnectionError."""
    slot = slot_of(key)
    for (first, last), address in slots.items():
        if first <= slot <= last:
            return address
    raise RedisConnectionError(f"no node of the cluster has the slot of {key!r}")


def read_slots(reply: Sequence[Sequence[Any]], own_host: str) -> Slots:
    """Reads the reply to CLUSTER SLOTS; a node that doesn't know its own address has the `own_host` host."""
    return {(first, last): (_text(host) or own_host, port) for first, last, (host, port, *_), *_ in reply}


def _text(raw: Any) -> str:
    return raw.decode() if isinstance(raw, bytes) else raw or ""


def retrieved(task: "asyncio.Task[Any]") -> None:
    """All who waited for it may have been cancelled."""
    if not task.cancelled():
        task.exception()


class _SlotConnection(Connection):
    """A connection to the node that has the slot of the pool's key, or to a given one."""

    def __init__(self, *, pool: "ClusterPool", **options: Any) -> None:
        super().__init__(**options)
        self._pool, self._given = pool, "port" in options

    async def _connect(self) -> None:
        if not self._given:
            self.host, self.port = address_of(await self._pool.look(), self._pool.home)
        await super()._connect()  # type: ignore[no-untyped-call]

    async def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().read_response(*args, **options)
        except MovedError:
            await self.disconnect()  # connecting again finds the other node
            raise RedisConnectionError("the slot has moved to another node") from None


class _SlotTlsConnection(_SlotConnection, SSLConnection):
    pass


class ClusterPool(ConnectionPool):
    """Connections to the node that has a key's slot: for a client whose keys all have that slot."""

    def __init__(self, cluster: Cluster, home: str, **options: Any) -> None:
        """`home`: the key."""
        self.home, self._known = home, list(cluster.nodes)  # the one that answered last is first
        self._looking: asyncio.Task[Slots] | None = None
        self._access: Any = {"username": cluster.user, "password": cluster.password, **encryption(cluster)}
        own = {name: value for name, value in self._access.items() if name != "ssl"}
        kind = _SlotConnection if cluster.tls is None else _SlotTlsConnection
        super().__init__(kind, **options, **own, pool=self)

    def connection_to(self, address: Address) -> Any:
        """A connection to that node: not open, and not of the pool."""
        host, port = address
        return self.connection_class(**self.connection_kwargs, host=host, port=port)  # type: ignore[call-arg]

    async def look(self) -> Slots:
        """Asks a node, once for all who want to know. Raises: redis.exceptions.ConnectionError."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
            self._looking.add_done_callback(retrieved)
        return await asyncio.shield(self._looking)

    async def _look(self) -> Slots:
        """One node after the other, until one answers."""
        why: Exception | None = None
        for host, port in self._known:
            client: Any = losable(Redis(host=host, port=port, **_BRIEF, **self._access))
            try:
                slots = read_slots(await client.execute_command("CLUSTER SLOTS"), host)
            except (RedisError, OSError) as exc:
                why = exc
                continue
            finally:
                await client.aclose()
            if slots:
                self._known = list(dict.fromkeys([(host, port), *slots.values(), *self._known]))
                return slots
        raise RedisConnectionError(f"no node of the cluster answers: {why}")
