"""What Redis said, as an error of ours."""

import hiredis
from redis.exceptions import OutOfMemoryError, ResponseError

from app.errors import StoreDown


def store_down(exc: Exception) -> StoreDown:
    """From an error of redis-py's, or a refused command's reply in hiredis' words."""
    if isinstance(exc, OutOfMemoryError) or str(exc).startswith("OOM "):
        return StoreDown("Redis is out of memory. Try again later.")
    if isinstance(exc, (ResponseError, hiredis.ReplyError)):
        return StoreDown(f"Redis refuses: {exc}")
    return StoreDown(f"Redis does not answer ({type(exc).__name__}). Try again.")
