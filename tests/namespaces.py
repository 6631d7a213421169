"""Hosts of a network of their own on this machine: network namespaces, as root. All are removed at the end."""

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Host:
    name: str
    address: str

    def command(self, *argv: str) -> list[str]:
        """Runs it there, with a /dev/shm of its own, and no name server, since none is reached from there."""
        own = 'mount -t tmpfs shm /dev/shm && mount --bind /dev/null /etc/resolv.conf && exec "$@"'
        return ["ip", "netns", "exec", self.name, "sh", "-c", own, "sh", *argv]


@dataclass(frozen=True)
class Here(Host):
    """The local machine, as if it were one of several."""

    def command(self, *argv: str) -> list[str]:
        return [*argv]


@dataclass(frozen=True)
class Network:
    address: str  # of this machine in it
    hosts: list[Host]


@contextmanager
def network(hosts: int) -> Iterator[Network]:
    """A network of hosts. Where it can't be made, a test is skipped, or fails if CI is set."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("network namespaces need root, and `ip` of iproute2")
    tag = secrets.token_hex(3)
    subnet = f"10.{secrets.randbelow(100) + 100}.{secrets.randbelow(250)}"
    bridge = f"xy{tag}"
    new_network = Network(f"{subnet}.1", [Host(f"xy{tag}-{i}", f"{subnet}.{i + 2}") for i in range(hosts)])
    try:
        _ip("link", "add", bridge, "type", "bridge")
        _ip("addr", "add", f"{new_network.address}/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for i, host in enumerate(new_network.hosts):
            outer, inner = f"xy{tag}o{i}", f"xy{tag}i{i}"
            _ip("netns", "add", host.name)
            _ip("link", "add", outer, "type", "veth", "peer", "name", inner)
            _ip("link", "set", inner, "netns", host.name)
            _ip("link", "set", outer, "master", bridge, "up")
            for step in (["addr", "add", f"{host.address}/24", "dev", inner], ["link", "set", inner, "up"]):
                _ip("-n", host.name, *step)
            _ip("-n", host.name, "link", "set", "lo", "up")
        yield new_network
    finally:
        for host in new_network.hosts:
            subprocess.run(["ip", "netns", "del", host.name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", bridge], check=False, capture_output=True)


def _ip(*args: str) -> None:
    result = subprocess.run(["ip", *args], check=False, capture_output=True, text=True)
    assert not result.returncode, f"ip {' '.join(args)}: {result.stderr}"
