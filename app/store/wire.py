"""The hot path's own Redis client: one connection for all callers (to each node of a cluster), which is made anew.

redis-py makes the connection (URLs, TLS, ACL users) and is used off the hot path. A round trip with it costs more
CPU than all the rest of a request: see `ops/decisions/0007-own-redis-wire.md`.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import hiredis
from redis.asyncio import Redis
from redis.exceptions import RedisError

from app.errors import StoreDown
from app.store.cluster import ClusterConnection
from app.store.cluster_nodes import ClusterPool
from app.store.connection import TIMEOUT_S, Command, Connection
from app.store.refusal import shown_url, store_down

# Errors of a replica, of a master without enough of them, of a server that isn't ready, and of a cluster that changes.
_NOT_THERE = ("READONLY", "NOREPLICAS", "LOADING", "MASTERDOWN", "MOVED ", "ASK ", "CLUSTERDOWN", "TRYAGAIN")
_TRIES_AFTER_S = (0.0, 0.05, 0.2)
_FAILURES = (RedisError, OSError, TimeoutError, hiredis.HiredisError)

AnyConnection = Connection | ClusterConnection


class Wire:
    """Commands of any number of coroutines over one connection, reconnecting."""

    def __init__(self, client: "Redis", timeout_s: float = TIMEOUT_S, steady_after_s: float = 3.0) -> None:
        """`timeout_s`: Redis counts as unreachable if it sends nothing for so long during a wait.

        `steady_after_s`: see `Intervals`.
        """
        self._client, self._timeout_s, self._steady_after_s = client, timeout_s, steady_after_s
        pool = client.connection_pool
        self._url = shown_url(pool)
        self._pool = pool if isinstance(pool, ClusterPool) else None
        self.is_cluster = self._pool is not None
        self.publish = "SPUBLISH" if self.is_cluster else "PUBLISH"  # the command for a channel of `subscribe`
        self._connection: AnyConnection | None = None
        self._opening: asyncio.Task[AnyConnection] | None = None
        self._reconnected = -math.inf  # monotonic

    async def execute(self, commands: Sequence[Command]) -> list[Any]:
        """The commands' replies. Raises: StoreDown when Redis is unreachable, or refuses any of the commands."""
        replies = await self.execute_each(commands)
        for reply in replies:
            if isinstance(reply, StoreDown):
                raise reply
        return replies

    async def execute_each(self, commands: Sequence[Command]) -> list[Any]:
        """The commands' replies; a refused command's reply is a StoreDown.

        Commands must be safe to repeat: after a lost connection, nobody knows which of them were executed.

        Raises: StoreDown when Redis is unreachable.
        """
        if not commands:
            return []
        failure: Exception | None = None
        for wait_s in _TRIES_AFTER_S:
            if wait_s:  # else this would be a turn of the loop
                await asyncio.sleep(wait_s)
            try:
                if (connection := self._connection) is None or connection.is_lost:
                    connection = await self._connect()
                replies = await connection.execute(commands)
                return _understood(replies) if hiredis.ReplyError in map(type, replies) else replies
            except _FAILURES as exc:
                failure = exc
                if self._connection is not None:
                    self._connection.suspect()
        assert failure is not None
        raise store_down(failure, self._url) from failure

    async def connection(self) -> AnyConnection:
        """The open connection: for a caller to whom it matters that Redis is the same as before. Raises: StoreDown."""
        try:
            if (connection := self._connection) is None or connection.is_lost:
                connection = await self._connect()
            return connection
        except _FAILURES as exc:
            raise store_down(exc, self._url) from exc

    async def execute_on(self, connection: AnyConnection, commands: Sequence[Command]) -> list[Any]:
        """The commands' replies, on that connection or not at all. Raises: StoreDown, as `execute`."""
        replies = await self._try_once(connection, commands) if commands else []
        for reply in replies:
            if isinstance(reply, StoreDown):
                raise reply
        return replies

    async def execute_once(self, commands: Sequence[Command]) -> list[Any]:
        """Executes commands that must not be repeated, else as `execute_each`.

        Raises: StoreDown when Redis is unreachable: they may have been executed all the same.
        """
        return await self._try_once(await self.connection(), commands)

    async def subscribe(self, channel: str, on_reply: Callable[[Any], None]) -> Connection:
        """A connection of its own for one channel; `on_reply` gets Redis' pub/sub arrays.

        In a cluster the channel has a slot, and moves with it. Raises: RedisError, OSError.
        """
        if self._pool is not None:
            connection = Connection(lambda reply: connection.close() if _is_over(reply) else on_reply(reply))
            await ClusterConnection(self._pool, self._timeout_s).subscribe(channel, connection)
            return connection
        connection = Connection(on_reply)
        await connection.open(self._client)
        connection.send([("SUBSCRIBE", channel)])
        return connection

    @property
    def connected_before(self) -> bool:
        """Whether Redis has ever answered: then the URL is right."""
        return self._connection is not None

    @property
    def reconnected(self) -> float:
        """The time when the present connection was made, monotonic; -infinity if it is the first one."""
        return self._reconnected

    def steady_s(self) -> float:
        """Seconds since the last reconnection; infinite if there was none."""
        return time.monotonic() - self._reconnected

    def is_steady(self) -> bool:
        """Whether Redis has been reachable for so long that all live processes have renewed their leases."""
        return self.steady_s() > self._steady_after_s

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def _try_once(self, connection: AnyConnection, commands: Sequence[Command]) -> list[Any]:
        try:
            return _understood(await connection.execute(commands))
        except _FAILURES as exc:
            connection.suspect()
            raise store_down(exc, self._url) from exc

    async def _connect(self) -> AnyConnection:
        """One attempt for all waiting callers: with attempts in turn, each would wait for the others' failures."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(self._opened)
        return await asyncio.shield(self._opening)

    async def _open(self) -> AnyConnection:
        before = self._connection
        async with asyncio.timeout(self._timeout_s):
            connection: AnyConnection
            if self._pool is not None:
                after = before.after() if isinstance(before, ClusterConnection) else None
                connection = after or ClusterConnection(self._pool, self._timeout_s)
                await connection.look()
            else:
                connection = Connection(timeout_s=self._timeout_s)
                await connection.open(self._client)
        if before is not None:
            before.close_but(connection)
            self._reconnected = time.monotonic()
        self._connection = connection
        return connection

    def _opened(self, task: "asyncio.Task[AnyConnection]") -> None:
        self._opening = None
        if not task.cancelled():
            task.exception()  # all waiting callers may have been cancelled


def _understood(replies: list[Any]) -> list[Any]:
    """The replies, with our errors. Raises: ConnectionError, where they come from a Redis that can't serve now."""
    refusals = [reply for reply in replies if type(reply) is hiredis.ReplyError]
    if not refusals:
        return replies
    if any(str(refusal).startswith(_NOT_THERE) for refusal in refusals):
        raise ConnectionError("Redis is still starting, or is a replica now")
    return [store_down(reply) if type(reply) is hiredis.ReplyError else reply for reply in replies]


def _is_over(reply: Any) -> bool:
    """Whether a channel's slot has left the node."""
    return isinstance(reply, hiredis.ReplyError) or reply[0] == b"sunsubscribe"
