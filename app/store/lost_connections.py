"""Connections that hear nothing more: how one that is found tells all others of its process.

What stands between a process and Redis may forget connections, and close none. One that waits finds that out by its
time-out. Idle ones would each cost whoever uses them next a time-out of their own, so they are made anew instead.
"""

import math
import time
from functools import cache
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

# Monotonic: when the last wait of this process began that heard nothing. An idle connection that has heard something
# before, and nothing since, may be forgotten, too.
silent_since = -math.inf


def found_silent(since: float) -> None:
    """A command that was sent at `since`, monotonic, had no answer within the time-out."""
    global silent_since  # noqa: PLW0603 (of the process, whose loops and threads share it)
    silent_since = max(silent_since, since)


class _Losable:
    """redis-py's connection, which is made anew if it is doubtful, and tells when it is silent."""

    _heard = -math.inf

    async def connect(self) -> None:
        """Makes the connection, if there is none or it is doubtful. Raises: RedisError."""
        if self.is_connected and self._heard < silent_since:  # type: ignore[attr-defined]  # of the class beside it
            await self.disconnect()  # type: ignore[attr-defined]
        await super().connect()  # type: ignore[misc]

    async def _connect(self) -> None:
        await super()._connect()  # type: ignore[misc]
        self._heard = time.monotonic()

    async def read_response(self, *args: Any, **options: Any) -> Any:
        """The reply. Raises: RedisError."""
        since = time.monotonic()
        try:
            reply = await super().read_response(*args, **options)  # type: ignore[misc]
        except RedisTimeoutError:
            found_silent(since)
            raise
        self._heard = time.monotonic()
        return reply

    async def send_packed_command(self, *args: Any, **options: Any) -> None:
        """Raises: RedisError, also where uvloop raises RuntimeError("... the handler is closed")."""
        try:
            await super().send_packed_command(*args, **options)  # type: ignore[misc]
        except RuntimeError as exc:
            raise RedisConnectionError(f"the connection is lost: {exc}") from exc


@cache
def _losable(kind: type[Any]) -> type[Any]:
    return type(kind.__name__, (_Losable, kind), {})


def losable(client: "Redis") -> "Redis":
    """The client, whose new connections are such ones."""
    pool = client.connection_pool
    kind: Any = pool.connection_class
    pool.connection_class = _losable(kind)
    return client
