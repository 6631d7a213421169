"""Decides which addresses media may be fetched from. Pure."""

from collections.abc import Collection
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# What is given to hosts. Python's tables know the exceptions within, but call all that is outside public too.
_GIVEN = IPv6Network("2000::/3")
# Addresses of IPv4 in another notation: the last 32 bits count.
_NAT64 = IPv6Network("64:ff9b::/96")
# Tunnels to IPv4 addresses, which no public server needs: 6to4 and Teredo. And networks that are set aside, but not in
# the tables of each Python.
_REFUSED: tuple[Network, ...] = tuple(
    map(ip_network, ("2002::/16", "2001::/32", "3fff::/20", "192.88.99.0/24", "192.0.0.0/24"))
)


def is_open(text: str, networks: Collection[Network]) -> bool:
    """Whether that address is public, or in one of the `networks`. False for one that is none, or has a zone."""
    try:
        address = _plain(ip_address(text))
    except ValueError:
        return False
    if any(address in network for network in networks):
        return True
    if isinstance(address, IPv6Address) and (address not in _GIVEN or address.scope_id is not None):
        return False
    return address.is_global and not address.is_multicast and not any(address in network for network in _REFUSED)


def _plain(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for, if it does."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address
