"""The TLS context of calls to the operator's own servers, by which these are checked."""

import ssl
from functools import cache

import httpx


@cache
def tls() -> ssl.SSLContext:
    """httpx would make one for each of its clients, also for http: 20 ms of CPU."""
    return httpx.create_ssl_context(trust_env=False)
