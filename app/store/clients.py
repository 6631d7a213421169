"""Builds the redis-py clients, which do all that is not hot."""

from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff


def _options() -> dict[str, Any]:
    return {
        "health_check_interval": 15,
        "socket_keepalive": True,
        "socket_connect_timeout": 2,
        "protocol": 2,
        # A first failure is often an idle connection that the server closed: try again, but never for long,
        # since somebody waits for the answer.
        "retry_on_error": [redis.exceptions.ConnectionError],
    }


def sync_client(url: str) -> "redis.Redis":
    return redis.Redis.from_url(url, socket_timeout=5.0, **_options())


def async_client(url: str, *, socket_timeout: float | None = 5.0) -> "redis.asyncio.Redis":
    """`socket_timeout` in seconds; None for connections that block on purpose."""
    retry = Retry(ExponentialBackoff(cap=0.2, base=0.02), 3)
    return redis.asyncio.Redis.from_url(url, socket_timeout=socket_timeout, retry=retry, **_options())
