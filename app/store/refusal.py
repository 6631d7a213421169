"""Redis' errors as ours."""

import hiredis
from redis.exceptions import OutOfMemoryError, ResponseError

from app.errors import StoreDown


class StoreFull(StoreDown):
    """Redis is out of memory: whoever comes now is told so at once."""


def store_down(exc: Exception) -> StoreDown:
    """The StoreDown for redis-py's error, or for hiredis' reply to a refused command."""
    if isinstance(exc, OutOfMemoryError) or str(exc).startswith("OOM "):
        return StoreFull("Redis is out of memory. Try again later.")
    if isinstance(exc, (ResponseError, hiredis.ReplyError)):
        return StoreDown(f"Redis refuses: {exc}")
    return StoreDown(f"Redis does not answer ({type(exc).__name__}). Try again.")
