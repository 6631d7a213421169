"""One connection of the hot path: a list of commands in, a list of replies out.

redis-py makes it (URLs, TLS, ACL users).
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import hiredis
from redis.asyncio import Redis

from app.store import lost_connections

TIMEOUT_S = 5.0

Command = tuple[Any, ...]  # its name and arguments: str, bytes, int or float


class Connection(asyncio.Protocol):
    """Replies in the order of the commands; once subscribed, every reply goes to `on_reply` instead."""

    def __init__(self, on_reply: Callable[[Any], None] | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self._reader = hiredis.Reader()
        self._waiting: deque[tuple[int, list[Any], asyncio.Future[list[Any]]]] = deque()
        self._unsent: list[bytes] = []
        self._on_reply = on_reply
        self._timeout_s = timeout_s
        self._heard = -math.inf  # monotonic: when Redis last sent something, or the wait for it began
        self.is_closed = False

    async def open(self, client: "Redis") -> None:
        """A connection of the client's pool. Raises: RedisError, OSError."""
        await self.take(client.connection_pool.make_connection())  # type: ignore[no-untyped-call]

    async def take(self, owner: Any) -> None:
        """Lets redis-py's connection connect and log in, then takes over its transport. Raises: RedisError, OSError."""
        try:
            await owner.connect()
        except BaseException:  # a cancel, too: redis-py leaves a connection open that is only half made
            await owner.disconnect(nowait=True)
            raise
        reader = owner._reader  # noqa: SLF001 (redis-py's parser of this reader)
        self._writer = owner._writer  # noqa: SLF001 (referenced, since it closes the transport when garbage-collected)
        owner._reader = owner._writer = None  # noqa: SLF001 (so that redis-py doesn't close it)
        self._transport: asyncio.Transport = self._writer.transport
        self._transport.set_protocol(self)
        self._heard = time.monotonic()
        if reader.at_eof() or self._transport.is_closing():  # redis-py has heard of the end, so this one never will
            self.close()
            raise ConnectionError("closed as it was made")

    def send(self, commands: Sequence[Command]) -> None:
        self._transport.write(b"".join([hiredis.pack_command(c) for c in commands]))

    async def execute(self, commands: Sequence[Command]) -> list[Any]:
        """The replies; a refused command's reply is a hiredis.ReplyError.

        Raises: ConnectionError, also when Redis has sent nothing for `timeout_s` during the wait.
        """
        if self.is_closed:
            raise ConnectionError("closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Any]] = loop.create_future()
        if not self._unsent:  # what is asked in the same turn of the loop is sent together: a send takes 15 µs
            loop.call_soon(self._send_all)
        self._unsent.append(b"".join(map(hiredis.pack_command, commands)))
        if not self._waiting:
            self._heard = time.monotonic()
            self._check = loop.call_later(self._timeout_s, self._close_if_silent)
        self._waiting.append((len(commands), [], future))
        return await future

    def _send_all(self) -> None:
        if not self._transport.is_closing():  # else `connection_lost` has told them, or will
            self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def close(self) -> None:
        self._transport.abort()

    @property
    def is_lost(self) -> bool:
        """Whether it is closed, or idle and may be forgotten as another one was."""
        return self.is_closed or (not self._waiting and self._heard < lost_connections.silent_since)

    def close_but(self, after: object) -> None:
        """Closes it: `after` is used from now on."""
        self.close()

    def suspect(self) -> None:
        """A command failed: the connection may hang, or lead to a server that is a replica now."""
        self.close()

    def _close_if_silent(self) -> None:
        """Checks again later if Redis has sent something: cheaper than a timer for each reply."""
        left_s = self._heard + self._timeout_s - time.monotonic()
        if left_s > 0:
            self._check = asyncio.get_running_loop().call_later(left_s, self._close_if_silent)
        else:
            lost_connections.found_silent(self._heard)
            self.close()

    def data_received(self, data: bytes) -> None:
        self._heard = time.monotonic()
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            if self._on_reply is not None:
                self._on_reply(reply)
                continue
            count, replies, future = self._waiting[0]
            replies.append(reply)
            if len(replies) == count:
                self._waiting.popleft()
                if not self._waiting:
                    self._check.cancel()
                if not future.done():
                    future.set_result(replies)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        for _, _, future in self._waiting:
            if not future.done():
                future.set_exception(exc or ConnectionError("closed by Redis"))
