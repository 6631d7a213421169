"""This host's network interfaces."""

import psutil


def interface_of(address: str) -> str | None:
    """The name of the one that has the address; None: none has, as behind a translated one."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == address for one in addresses):
            return str(name)
    return None
