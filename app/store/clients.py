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


def tls_options(url: str) -> dict[str, Any] | None:
    """What a `rediss://` URL says of TLS, for others than redis-py; None for URLs without TLS.

    Certificates are looked at unless the URL says otherwise: Celery on its own would take any.
    """
    if not url.startswith("rediss://"):
        return None
    said = {name: value for name, value in redis.connection.parse_url(url).items() if name.startswith("ssl_")}  # type: ignore[no-untyped-call]
    return {"ssl_cert_reqs": "required", **said}


def async_client(url: str, *, socket_timeout: float | None = 5.0) -> "redis.asyncio.Redis":
    """`socket_timeout` in seconds; None for connections that block on purpose."""
    retry = Retry(ExponentialBackoff(cap=0.2, base=0.02), 3)
    return redis.asyncio.Redis.from_url(url, socket_timeout=socket_timeout, retry=retry, **_options())
