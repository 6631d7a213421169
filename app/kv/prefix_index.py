"""One cache's blocks in Redis, for routing: its number in the entries of `cached:<pool>`, or `tiered:<pool>`.

The index leads from blocks to caches, so a prompt's look-up doesn't depend on the number of workers. A cache that is
cleared or written anew gets another number: what stands under the old one counts for nothing at once.
"""

import os
from collections.abc import Awaitable, Callable, Iterator, Sequence, Sized
from random import getrandbits
from typing import Literal, Protocol

from app.keys import Keys
from app.kv.changes import Changes
from app.store import Command, Wire
from app.store.scripts import MARK_INDEX, WRITE_INDEX

# Blocks in one command: Redis does nothing else meanwhile, and 500 take it a millisecond.
_CHUNK = 500
_MARK = b"w"  # behind a number: the field of its last write's mark
Way = Literal["add", "remove"]


def packed(number: int) -> bytes:
    """A cache's number as the index has it."""
    return number.to_bytes(4, "big")


class Blocks(Sized, Protocol):
    """A ledger: what one cache holds."""

    def blocks(self) -> list[bytes]: ...

    def take(self) -> Changes | None: ...


class KvIndex:
    """Writes the ledger's blocks. Repeated commands change nothing, so a broken connection does no harm."""

    def __init__(
        self, wire: Wire, keys: Keys, index: tuple[str, str], on_new_number: Callable[[], Awaitable[None]]
    ) -> None:
        """`index`: `Keys.cached` or `Keys.tiered`. `on_new_number` tells API replicas the new `number`."""
        self._wire, self._keys, self._renumbered = wire, keys, on_new_number
        self._index = index
        self._written = b""  # the mark of the last write; none yet of this number
        self.number = 0  # none yet

    async def write(self, changes: Changes) -> None:
        """Raises: StoreDown; part of it may be written then, and `rebuild` is needed."""
        if changes.cleared or not self.number:
            self.number, self._written = await next_number(self._wire, self._keys), b""
            await self._renumbered()
        removals, additions = self._commands("remove", changes.removed), self._commands("add", changes.added)
        await self._wire.execute([*removals, *additions, self._mark(self.number)])

    async def is_whole(self, size: int) -> bool:
        """Whether Redis has all writes, and as many blocks. Raises: StoreDown.

        One that came back without its last second may have as many, and others; or has given the number twice.
        """
        own = packed(self.number)
        ((count, mark),) = await self._wire.execute([("HMGET", self._index[1], own, own + _MARK)])
        return int(count or 0) == size and (mark or b"") == self._written

    async def rebuild(self, ledger: Blocks) -> None:
        """Replaces the cache by one that has the ledger's blocks, all at once. Raises: StoreDown."""
        number, self._written = await next_number(self._wire, self._keys), b""
        await self._wire.execute([*self._commands("add", ledger.blocks(), number), self._mark(number)])
        self.number = number
        await self._renumbered()

    def _mark(self, number: int) -> Command:
        before, self._written = self._written, os.urandom(8)
        return "EVAL", MARK_INDEX, 1, self._index[1], packed(number) + _MARK, before, self._written

    def _commands(self, what: Way, blocks: Sequence[bytes], number: int | None = None) -> Iterator[Command]:
        return index_commands(self._index, self.number if number is None else number, what, blocks)


async def next_number(wire: Wire, keys: Keys) -> int:
    """Raises: StoreDown."""
    # They begin anywhere: a Redis that lost them gives none to two caches whose workers haven't noticed yet.
    numbers = keys.cache_numbers()
    begin: Command = ("SET", numbers, getrandbits(31), "NX")
    _, number = await wire.execute([begin, ("INCR", numbers)])
    return int(number)


def index_commands(index: tuple[str, str], number: int, what: Way, blocks: Sequence[bytes]) -> Iterator[Command]:
    for i in range(0, len(blocks), _CHUNK):
        yield "EVAL", WRITE_INDEX, 2, *index, packed(number), what, b"".join(blocks[i : i + _CHUNK])
