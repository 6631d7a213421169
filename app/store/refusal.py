"""Redis' errors as ours."""

from typing import Any

import hiredis
from redis.asyncio import SSLConnection
from redis.exceptions import OutOfMemoryError, ResponseError

from app.errors import StoreDown


class StoreFull(StoreDown):
    """Redis is out of memory: whoever comes now is told so at once."""

    event = "redis_full"


def store_down(exc: Exception, url: str = "") -> StoreDown:
    """The StoreDown for redis-py's error, or for hiredis' reply to a refused command. `url`: of that Redis."""
    if isinstance(exc, OutOfMemoryError) or str(exc).startswith("OOM "):
        down: StoreDown = StoreFull("Redis is out of memory. Try again later.")
    elif isinstance(exc, (ResponseError, hiredis.ReplyError)):
        down = StoreDown(f"Redis refuses: {exc}")
        down.event = "redis_refuses"
    else:
        down = StoreDown(f"Redis does not answer ({type(exc).__name__}). Try again.")
    down.url = url
    return down


def shown_url(pool: Any) -> str:
    """The server of redis-py's pool, without user and password; empty: it is none of one server."""
    if service := getattr(pool, "service_name", ""):
        return f"sentinel://{service}"
    options = getattr(pool, "connection_kwargs", {})
    if "path" in options:
        return f"unix://{options['path']}"
    if "host" not in options:
        return ""
    scheme = "rediss" if issubclass(pool.connection_class, SSLConnection) else "redis"
    host = f"[{options['host']}]" if ":" in options["host"] else options["host"]
    return f"{scheme}://{host}:{options.get('port', 6379)}/{options.get('db', 0)}"
