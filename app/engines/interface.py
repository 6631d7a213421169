"""The network interface through which an engine on several hosts reaches the others."""

import psutil


def interface_environment(address: str) -> dict[str, str]:
    """Variables that tell gloo and NCCL the interface that has this host's address; none if none has it.

    Without them they guess, and may take one that leads nowhere.
    """
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == address for one in addresses):
            return {"GLOO_SOCKET_IFNAME": str(name), "NCCL_SOCKET_IFNAME": str(name)}
    return {}
