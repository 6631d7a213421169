"""The hot path's connections to the nodes of a Redis Cluster, used as one connection.

Commands of one list go to all their nodes at once, and stay in order only on each of them.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import hiredis

from app.store.cluster_nodes import Address, ClusterPool, Slots, address_of, retrieved
from app.store.connection import Command, Connection

_REDIRECTS = 3  # of one command
_HAS_MOVED = ("MOVED ", "ASK ")


def key_of(command: Command) -> str | None:
    """Its first key; all others have the same slot. None: any node may answer."""
    name = command[0]
    if name == "EVAL":
        return str(command[3]) if command[2] else None
    return str(command[1]) if len(command) > 1 and name not in ("ECHO", "PING") else None


class ClusterConnection:
    """Ends with the first of its nodes' connections that breaks: what follows is on another one."""

    def __init__(
        self, pool: ClusterPool, timeout_s: float, members: Mapping[Address, Connection] | None = None
    ) -> None:
        """`members`: open connections."""
        self._pool, self._timeout_s = pool, timeout_s
        self._members = dict(members or {})
        self._opening: dict[Address, asyncio.Task[Connection]] = {}
        self._slots: Slots | None = None  # None: unknown, or perhaps outdated

    @property
    def is_closed(self) -> bool:
        return any(member.is_closed for member in self._members.values())

    @property
    def is_lost(self) -> bool:
        return any(member.is_lost for member in self._members.values())

    def after(self) -> "ClusterConnection":
        """Another one, with what is still open of this one, and not lost."""
        still = {address: member for address, member in self._members.items() if not member.is_lost}
        return ClusterConnection(self._pool, self._timeout_s, still)

    def suspect(self) -> None:
        """A command failed: asks anew which node has which slot, before the next one."""
        self._slots = None

    def close_but(self, after: object) -> None:
        """Closes what the connection after it does not use, too."""
        kept_members = after._members.values() if isinstance(after, ClusterConnection) else ()  # noqa: SLF001 (its own class)
        for member in self._members.values():
            if member not in kept_members:
                member.close()

    def close(self) -> None:
        for member in self._members.values():
            member.close()

    async def execute(self, commands: Sequence[Command]) -> list[Any]:
        """Executes commands as `Connection.execute` does; follows slots that have moved or are moving."""
        if self.is_closed:
            raise ConnectionError("closed")
        slots = self._slots or await self.look()
        keys = [key_of(command) for command in commands]
        home = next((key for key in keys if key is not None), None)
        nodes = [_node(slots, home if key is None else key) for key in keys]
        replies = await self._spread(nodes, commands)
        for _ in range(_REDIRECTS):
            moved_indices = [i for i, reply in enumerate(replies) if _has_moved(reply)]
            if not moved_indices:
                break
            slots = await self.look()
            for i in moved_indices:
                replies[i] = await self._follow(str(replies[i]), commands[i], slots)
        return replies

    async def look(self) -> Slots:
        """Asks which node has which slot. Raises: RedisError."""
        self._slots = await self._pool.look()
        return self._slots

    async def subscribe(self, channel: str, connection: Connection) -> None:
        """Subscribes to a channel that has a slot. Raises: RedisError, OSError."""
        await connection.take(self._pool.connection_to(address_of(await self.look(), channel)))
        connection.send([("SSUBSCRIBE", channel)])

    async def _follow(self, reply: str, command: Command, slots: Slots) -> Any:
        """`reply`: "MOVED slot host:port", or ASK, when keys that are not there any more are on that node."""
        kind, _slot, location = reply.split()
        host, _, port = location.rpartition(":")
        address = (host, int(port)) if kind == "ASK" and host else _node(slots, key_of(command))
        commands = [("ASKING",), command] if kind == "ASK" else [command]
        return (await self._execute(address, commands))[-1]

    async def _spread(self, nodes: Sequence[Address], commands: Sequence[Command]) -> list[Any]:
        """Executes each command on its node."""
        by_node: dict[Address, list[int]] = {}
        for i, node in enumerate(nodes):
            by_node.setdefault(node, []).append(i)
        if len(by_node) == 1:
            return await self._execute(nodes[0], commands)
        parts = [self._execute(node, [commands[i] for i in own]) for node, own in by_node.items()]
        answers = await asyncio.gather(*parts, return_exceptions=True)
        replies: list[Any] = [None] * len(commands)
        for own, answer in zip(by_node.values(), answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            for i, reply in zip(own, answer, strict=True):
                replies[i] = reply
        return replies

    async def _execute(self, node: Address, commands: Sequence[Command]) -> list[Any]:
        member = self._members.get(node) or await self._member(node)
        return await member.execute(commands)

    async def _member(self, node: Address) -> Connection:
        """One attempt to connect for all who wait for it."""
        if node not in self._opening:
            self._opening[node] = asyncio.create_task(self._connect(node))
            self._opening[node].add_done_callback(retrieved)
        return await asyncio.shield(self._opening[node])

    async def _connect(self, node: Address) -> Connection:
        try:
            connection = Connection(timeout_s=self._timeout_s)
            async with asyncio.timeout(self._timeout_s):
                await connection.take(self._pool.connection_to(node))
            self._members[node] = connection
        finally:
            del self._opening[node]
        return connection


def _node(slots: Slots, key: str | None) -> Address:
    """Raises: redis.exceptions.ConnectionError."""
    return next(iter(slots.values())) if key is None else address_of(slots, key)


def _has_moved(reply: Any) -> bool:
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith(_HAS_MOVED)
