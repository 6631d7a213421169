"""A file by HTTP, from an address that was looked at: a name that leads elsewhere by then leads nowhere. Blocks."""

import socket
import time
from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import IO
from urllib.parse import urlsplit, urlunsplit

import httpx

from app.errors import AdapterFailed

_CONNECT_S, _SILENT_S, _WHOLE_S = 5.0, 15.0, 600.0
_PIECE = 2**20


def download(url: str, into: IO[bytes], most: int, networks: Collection[str] = ()) -> None:
    """Downloads at most `most` bytes; from public addresses, and those of `networks`. Raises: AdapterFailed."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    address = resolve(host, port, networks)
    literal = f"[{address}]" if address.version == 6 else str(address)
    pinned_url = urlunsplit((parts.scheme, f"{literal}:{port}", parts.path, "", ""))
    until, size = time.monotonic() + _WHOLE_S, 0
    times = httpx.Timeout(_SILENT_S, connect=_CONNECT_S)
    try:
        with (
            # No proxy of the environment: it would look the name up again. Its certificates (SSL_CERT_FILE) count.
            httpx.Client(
                verify=httpx.create_ssl_context(), timeout=times, follow_redirects=False, trust_env=False
            ) as client,
            client.stream(
                "GET",
                pinned_url,
                headers={"host": parts.netloc, "accept-encoding": "identity"},
                extensions={"sni_hostname": host},
            ) as answer,
        ):
            if answer.status_code != 200:
                raise AdapterFailed(f"{parts.hostname} answered {answer.status_code}; redirects are not followed.")
            for piece in answer.iter_raw(_PIECE):
                size += len(piece)
                if size > most:
                    raise AdapterFailed(f"The adapter has more than {most} bytes (XYLEM_MAX_LORA).")
                if time.monotonic() > until:
                    raise AdapterFailed(f"{parts.hostname} took longer than {_WHOLE_S:g} s.")
                into.write(piece)
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        raise AdapterFailed(f"{parts.hostname} can't be read: {type(exc).__name__}.") from exc


def resolve(host: str, port: int, networks: Collection[str]) -> IPv4Address | IPv6Address:
    """One address, all of the name's being allowed. Raises: AdapterFailed."""
    try:
        addresses = [ip_address(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    except (OSError, ValueError) as exc:
        raise AdapterFailed(f"{host} has no address: {exc}.") from exc
    for address in addresses:
        if not _is_open(address, networks):
            raise AdapterFailed(f"{host} leads to {address}, which is not public (XYLEM_LORA_NETWORKS).")
    return addresses[0]


def _is_open(address: IPv4Address | IPv6Address, networks: Collection[str]) -> bool:
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if any(address in ip_network(network) for network in networks):
        return True
    return address.is_global and not address.is_multicast
