"""Handles what proxies in front of the API change of requests: the base path, and the client that they speak for."""

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Self

from starlette.types import Scope

from app.api.http.direct_writer import EXTENSION
from app.settings import Settings

_SCHEMES = {b"http": "http", b"https": "https"}


@dataclass(frozen=True)
class Front:
    root: str  # the path below which clients see the API; empty: none
    trusted: tuple[IPv4Network | IPv6Network, ...]  # networks of proxies

    @classmethod
    def of(cls, settings: Settings) -> Self | None:
        """None: nothing is in front that the API has to know of."""
        if not settings.root_path and not settings.trusted_proxies:
            return None
        return cls(settings.root_path, tuple(map(ip_network, sorted(settings.trusted_proxies))))

    def read(self, scope: Scope) -> None:
        """Puts a request's own path, and what a trusted proxy says of its client, into the scope."""
        path: str = scope["path"]
        if self.root and (path == self.root or path.startswith(f"{self.root}/")):
            scope["path"] = path[len(self.root) :] or "/"
            scope["raw_path"] = scope["raw_path"][len(self.root) :] or b"/"
        if self.trusted and self._is_trusted(_peer(scope)):
            self._believe(scope)

    def _believe(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        hops = headers.get(b"x-forwarded-for", b"").decode("latin-1").split(",")
        # Each proxy adds the one that it saw at the end: the last that is no proxy of ours is the client.
        clients = [hop for hop in map(str.strip, hops) if hop and not self._is_trusted(hop)]
        if clients:
            scope["client"] = clients[-1], 0
        scope["scheme"] = _SCHEMES.get(_first(headers, b"x-forwarded-proto"), scope["scheme"])
        if host := _first(headers, b"x-forwarded-host"):
            others = [field for field in scope["headers"] if field[0] != b"host"]
            scope["headers"] = [(b"host", host), *others]

    def _is_trusted(self, host: str) -> bool:
        try:
            address = ip_address(host)
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:  # over a socket of both families
            address = address.ipv4_mapped
        return any(address in network for network in self.trusted)


def _first(headers: dict[bytes, bytes], name: bytes) -> bytes:
    return headers.get(name, b"").partition(b",")[0].strip().lower()


def _peer(scope: Scope) -> str:
    """The address of the connection's other end, which is asked for here alone: it takes longer than a token."""
    address = scope["client"] or scope["extensions"][EXTENSION].peer()
    return str(address[0]) if address else ""
