"""By which address the workers of other hosts reach this one."""

import socket

from app.redis_url import hosts

_LOOPBACK = "127.0.0.1"


def address_towards(redis_url: str) -> str:
    """That of this host on its way to Redis, which the others find as well; loopback if Redis is on this host.

    Nothing is sent: a datagram socket that is connected knows its own end.
    """
    for host, port in hosts(redis_url):  # none: a Unix socket
        try:
            family, kind, protocol, _, to = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind, protocol) as s:
                s.connect(to)
                own: str = s.getsockname()[0]
                return own
        except OSError:  # it can't be reached either: the next Sentinel, or that is told better elsewhere
            continue
    return _LOOPBACK
