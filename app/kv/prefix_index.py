"""One engine's cached blocks in Redis, for routing: its number in the entries of `cached:<pool>`.

The index leads from blocks to caches, so a prompt's look-up doesn't depend on the number of workers. A cache that is
cleared or written anew gets another number: what stands under the old one counts for nothing at once.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from random import getrandbits

from app.ids import PoolId
from app.keys import Keys
from app.kv.ledger import Changes, Ledger
from app.store import WRITE_INDEX, Command, Wire

# Blocks in one command: Redis does nothing else meanwhile, and 500 take it a millisecond.
_CHUNK = 500


def packed(number: int) -> bytes:
    """A cache's number as the index has it."""
    return number.to_bytes(4, "big")


class KvIndex:
    """Writes the ledger's blocks. Repeated commands change nothing, so a broken connection does no harm."""

    def __init__(self, wire: Wire, keys: Keys, pool: PoolId, renumbered: Callable[[], Awaitable[None]]) -> None:
        """`renumbered` tells API replicas the `number`, which has changed."""
        self._wire, self._numbers, self._renumbered = wire, keys.cache_numbers(), renumbered
        self._index, self._count = keys.cached(pool)
        self.number = 0  # none yet

    async def write(self, changes: Changes) -> None:
        """Raises: StoreDown; part of it may be written then, and `rebuild` is needed."""
        if changes.cleared or not self.number:
            self.number = await self._next()
            await self._renumbered()
        removed, added = self._commands("remove", changes.removed), self._commands("add", changes.added)
        await self._wire.execute([*removed, *added])

    async def size(self) -> int:
        """How many blocks Redis has. Raises: StoreDown."""
        (count,) = await self._wire.execute([("HGET", self._count, packed(self.number))])
        return int(count or 0)

    async def rebuild(self, ledger: Ledger) -> None:
        """Replaces the cache by one that has the ledger's blocks, all at once. Raises: StoreDown."""
        number = await self._next()
        await self._wire.execute([*self._commands("add", ledger.blocks(), number)])
        self.number = number
        await self._renumbered()

    async def _next(self) -> int:
        """Raises: StoreDown."""
        # They begin anywhere: a Redis that lost them gives none to two caches whose workers haven't noticed yet.
        begin: Command = ("SET", self._numbers, getrandbits(31), "NX")
        _, number = await self._wire.execute([begin, ("INCR", self._numbers)])
        return int(number)

    def _commands(self, what: str, blocks: Sequence[bytes], number: int | None = None) -> Iterator[Command]:
        own = packed(self.number if number is None else number)
        for i in range(0, len(blocks), _CHUNK):
            yield "EVAL", WRITE_INDEX, 2, self._index, self._count, own, what, b"".join(blocks[i : i + _CHUNK])
