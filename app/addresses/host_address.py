"""The address at which workers on other hosts reach this one."""

import socket

from app.addresses.redis_url import hosts

_LOOPBACK = "127.0.0.1"


def address_towards(redis_url: str) -> str:
    """The host's address on the route to Redis, which other workers reach as well; loopback if Redis is on this host.

    Sends nothing: connecting a datagram socket only chooses its local address.
    """
    for host, port in hosts(redis_url):  # none: a Unix socket
        try:
            family, kind, protocol, _, to = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind, protocol) as s:
                s.connect(to)
                own: str = s.getsockname()[0]
                return own
        except OSError:  # try the next Sentinel; connecting to Redis reports the error
            continue
    return _LOOPBACK
