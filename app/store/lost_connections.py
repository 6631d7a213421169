"""redis-py's connections on uvloop: one that the other end has closed is a lost connection, and nothing else.

uvloop raises RuntimeError("... the handler is closed") for a write to it, which redis-py passes on.
"""

from functools import cache
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError


class _Losable:
    __slots__ = ()

    async def send_packed_command(self, *args: Any, **options: Any) -> None:
        """Raises: RedisError."""
        try:
            await super().send_packed_command(*args, **options)  # type: ignore[misc]  # of the class beside it
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
