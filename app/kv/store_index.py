"""The blocks of a store that workers share, in `tiered:<pool>`: under the store's own number, which outlives them.

`stored:<pool>` has the engine's hash of each, which is its file's name: so what has no file can be removed here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TypeVar

from app.ids import PoolId
from app.keys import Keys
from app.kv.events import EngineHash
from app.kv.prefix_index import Way, index_commands, next_number, packed
from app.kv.tier_ledger import TierLedger
from app.store import Command, Wire

_T = TypeVar("_T")
_AT_ONCE = 500  # fields of one command
_NAME = 8  # bytes of an engine's hash
_FEW = 1000  # blocks of a ledger, which may stay although the store has lost them


def short_name(theirs: EngineHash) -> bytes:
    """The end of an engine's hash: vLLM's events may have no more of it."""
    return theirs.to_bytes(_NAME, "big") if isinstance(theirs, int) else theirs[-_NAME:]


class StoreIndex:
    """The index of one ledger. A worker adds what it has stored, and removes what it found gone.

    Repeated commands change nothing.
    """

    def __init__(
        self, wire: Wire, keys: Keys, pool: PoolId, name: str, on_new_number: Callable[[], Awaitable[None]]
    ) -> None:
        """`wire`: of the index. `name`: the same for all workers that can read each other's blocks.

        `on_new_number` tells API replicas the `number`, which is known after the first `check`.
        """
        self._renumbered = on_new_number
        self._wire, self._keys, self._name = wire, keys, name
        self._index, self._stores, self._stored = keys.tiered(pool), keys.stores(pool), keys.stored(pool)
        self._unwritten: list[list[Command]] = []
        self._most = _FEW  # blocks of the ledger, after which it forgets
        self.number = 0

    async def check(self, ledger: TierLedger) -> None:
        """Gives the store a number if it has none. If Redis has lost it, what was stored is written anew.

        What others have removed from the store is still in the ledger, so that the counts say nothing. Raises:
        StoreDown.
        """
        before, (stored_number,) = self.number, await self._wire.execute([("HGET", self._stores, self._name)])
        if stored_number is None:
            number = await next_number(self._wire, self._keys)
            _, stored_number = await self._wire.execute(
                [("HSETNX", self._stores, self._name, number), ("HGET", self._stores, self._name)]
            )
        self.number = int(stored_number)
        if self.number != before:
            self._unwritten += self._adding(ledger.named())
            await self.write(ledger)
            await self._renumbered()

    async def write(self, ledger: TierLedger) -> None:
        """Raises: StoreDown; the next call writes it again. Before the first `check` it does nothing."""
        if not self.number:
            return
        if (named_changes := ledger.take_named()) is not None:
            changes, names = named_changes
            self._unwritten += self._removing({ours: names[ours] for ours in changes.removed})
            self._unwritten += self._adding({ours: names[ours] for ours in changes.added})
        while self._unwritten:
            await self._wire.execute(self._unwritten[0])
            del self._unwritten[0]

    async def forget(self, ledger: TierLedger) -> None:
        """Removes from the ledger what others have removed from the store, each time that it has become twice as long.

        After `check` and `write`. Raises: StoreDown.
        """
        if ledger.count <= self._most:
            return
        blocks, stored_names = ledger.held(), await self.known()
        (number,) = await self._wire.execute([("HGET", self._stores, self._name)])
        if (
            number is None or int(number) != self.number
        ):  # Redis has lost it meanwhile: the next `check` writes all anew
            return
        for part in _parts(blocks):
            ledger.forget(theirs for theirs in part if short_name(theirs) not in stored_names)
            await asyncio.sleep(0)  # they may be many, and this is the engine's loop
        self._most = max(_FEW, 2 * ledger.count)

    async def known(self) -> dict[bytes, bytes]:
        """Our hashes, by the short names of the store's blocks. Raises: StoreDown."""
        hashes: dict[bytes, bytes] = {}
        cursor, own = b"0", packed(self.number)
        while True:
            ((cursor, fields),) = await self._wire.execute([("HSCAN", self._stored, cursor, "COUNT", _AT_ONCE)])
            pairs = zip(fields[::2], fields[1::2], strict=True)
            hashes |= {name[len(own) :]: ours for name, ours in pairs if name.startswith(own)}
            if cursor == b"0":
                return hashes

    async def remove(self, blocks: Mapping[bytes, bytes]) -> None:
        """Removes these blocks of `known`. Raises: StoreDown."""
        await self._wire.execute([*chain(*self._removing({ours: name for name, ours in blocks.items()}))])

    # Commands of a part are sent together: of a worker that dies between them, the index would have blocks for ever
    # whose names nobody knows.

    def _adding(self, names: Mapping[bytes, EngineHash]) -> Iterator[list[Command]]:
        for part in _parts([*names.items()]):
            fields = (value for ours, theirs in part for value in (self._field(theirs), ours))
            yield [*self._written("add", part), ("HSET", self._stored, *fields)]

    def _removing(self, names: Mapping[bytes, EngineHash]) -> Iterator[list[Command]]:
        for part in _parts([*names.items()]):
            yield [*self._written("remove", part), ("HDEL", self._stored, *(self._field(theirs) for _, theirs in part))]

    def _written(self, what: Way, part: Sequence[tuple[bytes, EngineHash]]) -> Iterator[Command]:
        return index_commands(self._index, self.number, what, [ours for ours, _ in part])

    def _field(self, theirs: EngineHash) -> bytes:
        return packed(self.number) + short_name(theirs)


def _parts(values: Sequence[_T]) -> Iterator[Sequence[_T]]:
    return (values[i : i + _AT_ONCE] for i in range(0, len(values), _AT_ONCE))
