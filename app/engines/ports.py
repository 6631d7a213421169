"""Ports for what an engine listens on besides."""

import secrets
import socket

_PORTS = range(20_000, 32_000)  # below those that the system gives to outgoing connections


def free_ports(count: int) -> int:
    """The first of so many that are free, one behind the other."""
    while True:
        first = _PORTS.start + secrets.randbelow(len(_PORTS) - count)
        if all(_is_free(port) for port in range(first, first + count)):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as s:
        try:
            s.bind(("", port))
        except OSError:
            return False
        return True
