"""Hosts that a server answers for. A page's own name may resolve to this machine (DNS rebinding): `Host` shows it."""

from functools import lru_cache
from ipaddress import IPv4Address

_LOOPBACK = {"localhost", "::1", "127.0.0.1"}


@lru_cache(64)  # nearly all requests have the same few
def is_named(host: str, names: frozenset[str]) -> bool:
    """Whether a request's `Host`, in lower case, is one of these names, or loopback's; with any port."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0].removesuffix(".")
    return name in names or name in _LOOPBACK or (name.startswith("127.") and _is_address(name))


def _is_address(name: str) -> bool:
    try:
        IPv4Address(name)
    except ValueError:
        return False
    return True
