"""By which address the workers of other hosts reach this one."""

import socket
from urllib.parse import urlsplit

_LOOPBACK = "127.0.0.1"


def address_towards(redis_url: str) -> str:
    """That of this host on its way to Redis, which the others find as well; loopback if Redis is on this host.

    Nothing is sent: a datagram socket that is connected knows its own end.
    """
    url = urlsplit(redis_url)
    if not url.hostname:  # a Unix socket
        return _LOOPBACK
    try:
        family, kind, protocol, _, to = socket.getaddrinfo(url.hostname, url.port or 6379, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as s:
            s.connect(to)
            own: str = s.getsockname()[0]
            return own
    except OSError:  # Redis can't be reached either, and that is told better elsewhere
        return _LOOPBACK
