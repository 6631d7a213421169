"""The hot path's own Redis client: one connection for all callers, a list of commands in, a list of replies out.

redis-py makes the connection (URLs, TLS, ACL users) and is used off the hot path. A round trip with it costs more
CPU than all the rest of a request: see `ops/decisions/0007-own-redis-wire.md`.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import hiredis
from redis.asyncio import Redis
from redis.exceptions import RedisError

from app.errors import StoreDown
from app.store.refusal import store_down

_TIMEOUT_S = 5.0
_NOT_THERE = ("READONLY", "LOADING", "MASTERDOWN")  # errors of a replica, or of a server that isn't ready
_TRIES_AFTER_S = (0.0, 0.05, 0.2)
_FAILURES = (RedisError, OSError, TimeoutError, hiredis.HiredisError)

Command = tuple[Any, ...]  # its name and arguments: str, bytes, int or float


class Connection(asyncio.Protocol):
    """Replies in the order of the commands; once subscribed, every reply goes to `on_reply` instead."""

    def __init__(self, on_reply: Callable[[Any], None] | None = None, timeout_s: float = _TIMEOUT_S) -> None:
        self._reader = hiredis.Reader()
        self._waiting: deque[tuple[int, list[Any], asyncio.Future[list[Any]]]] = deque()
        self._on_reply = on_reply
        self._timeout_s = timeout_s
        self._heard = -math.inf  # monotonic: when Redis last sent something, or the wait for it began
        self.closed = asyncio.Event()

    async def open(self, client: "Redis") -> None:
        """Lets redis-py connect and log in, then takes over its transport. Raises: RedisError, OSError."""
        owner = client.connection_pool.make_connection()  # type: ignore[no-untyped-call]
        try:
            await owner.connect()
        except BaseException:  # a cancel, too: redis-py leaves a connection open that is only half made
            await owner.disconnect(nowait=True)
            raise
        self._writer = owner._writer  # noqa: SLF001 (referenced, since it closes the transport when garbage-collected)
        owner._reader = owner._writer = None  # noqa: SLF001 (so that redis-py doesn't close it)
        self._transport: asyncio.Transport = self._writer.transport
        self._transport.set_protocol(self)

    def send(self, commands: Sequence[Command]) -> None:
        self._transport.write(b"".join([hiredis.pack_command(c) for c in commands]))

    async def execute(self, commands: Sequence[Command]) -> list[Any]:
        """The replies; a refused command's reply is a hiredis.ReplyError.

        Raises: ConnectionError, also when Redis has sent nothing for `timeout_s` during the wait.
        """
        if self.closed.is_set():
            raise ConnectionError("closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Any]] = loop.create_future()
        self.send(commands)
        if not self._waiting:
            self._heard = time.monotonic()
            self._check = loop.call_later(self._timeout_s, self._close_if_silent)
        self._waiting.append((len(commands), [], future))
        return await future

    def close(self) -> None:
        self._transport.abort()

    def _close_if_silent(self) -> None:
        """Checks again later if Redis has sent something: cheaper than a timer for each reply."""
        left_s = self._heard + self._timeout_s - time.monotonic()
        if left_s > 0:
            self._check = asyncio.get_running_loop().call_later(left_s, self._close_if_silent)
        else:
            self.close()

    def data_received(self, data: bytes) -> None:
        self._heard = time.monotonic()
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            if self._on_reply is not None:
                self._on_reply(reply)
                continue
            wanted, replies, future = self._waiting[0]
            replies.append(reply)
            if len(replies) == wanted:
                self._waiting.popleft()
                if not self._waiting:
                    self._check.cancel()
                if not future.done():
                    future.set_result(replies)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        for _, _, future in self._waiting:
            if not future.done():
                future.set_exception(exc or ConnectionError("closed by Redis"))


class Wire:
    """Commands of any number of coroutines over one connection, reconnecting."""

    def __init__(self, client: "Redis", timeout_s: float = _TIMEOUT_S, steady_after_s: float = 3.0) -> None:
        """`timeout_s`: Redis counts as unreachable if it sends nothing for so long during a wait.

        `steady_after_s`: see `Intervals`.
        """
        self._client, self._timeout_s, self._steady_after_s = client, timeout_s, steady_after_s
        self._connection: Connection | None = None
        self._opening: asyncio.Task[Connection] | None = None
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
            await asyncio.sleep(wait_s)
            try:
                replies = await self._try(await self._open_connection(), commands)
            except _FAILURES as exc:
                failure = exc
                self.close()  # it may hang
                continue
            return [store_down(r) if isinstance(r, hiredis.ReplyError) else r for r in replies]
        assert failure is not None
        raise store_down(failure) from failure

    async def connection(self) -> Connection:
        """The open connection: for a caller to whom it matters that Redis is the same as before. Raises: StoreDown."""
        try:
            return await self._open_connection()
        except _FAILURES as exc:
            raise store_down(exc) from exc

    async def execute_on(self, connection: Connection, commands: Sequence[Command]) -> list[Any]:
        """The commands' replies, on that connection or not at all. Raises: StoreDown, as `execute`."""
        try:
            replies = await self._try(connection, commands) if commands else []
        except _FAILURES as exc:
            connection.close()
            raise store_down(exc) from exc
        if (refusal := next((r for r in replies if isinstance(r, hiredis.ReplyError)), None)) is not None:
            raise store_down(refusal)
        return replies

    async def subscribe(self, channel: str, on_reply: Callable[[Any], None]) -> Connection:
        """A connection of its own for one channel; `on_reply` gets Redis' pub/sub arrays.

        Raises: RedisError, OSError.
        """
        connection = Connection(on_reply)
        await connection.open(self._client)
        connection.send([("SUBSCRIBE", channel)])
        return connection

    @property
    def connected_before(self) -> bool:
        """Whether Redis has ever answered: then the URL is right."""
        return self._connection is not None

    def steady_s(self) -> float:
        """Seconds since the last reconnection; infinite if there was none."""
        return time.monotonic() - self._reconnected

    def is_steady(self) -> bool:
        """Whether Redis has been reachable for so long that all live processes have renewed their leases."""
        return self.steady_s() > self._steady_after_s

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def _open_connection(self) -> Connection:
        if self._connection is None or self._connection.closed.is_set():
            return await self._connect()
        return self._connection

    async def _try(self, connection: Connection, commands: Sequence[Command]) -> list[Any]:
        replies = await connection.execute(commands)
        if any(isinstance(r, hiredis.ReplyError) and str(r).startswith(_NOT_THERE) for r in replies):
            raise ConnectionError("Redis is still starting, or is a replica now")
        return replies

    async def _connect(self) -> Connection:
        """One attempt for all waiting callers: with attempts in turn, each would wait for the others' failures."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(self._opened)
        return await asyncio.shield(self._opening)

    async def _open(self) -> Connection:
        async with asyncio.timeout(self._timeout_s):
            connection = Connection(timeout_s=self._timeout_s)
            await connection.open(self._client)
        if self._connection is not None:
            self._reconnected = time.monotonic()
        self._connection = connection
        return connection

    def _opened(self, task: "asyncio.Task[Connection]") -> None:
        self._opening = None
        if not task.cancelled():
            task.exception()  # all waiting callers may have been cancelled
