"""The blocks of a store that workers share, in `tiered:<pool>`: under the store's own number, which outlives them."""

from collections.abc import Awaitable, Callable

from app.ids import PoolId
from app.keys import Keys
from app.kv.prefix_index import Way, index_commands, next_number, packed
from app.kv.tier_ledger import TierLedger
from app.store import Wire


class StoreIndex:
    """Each worker adds what it has stored, and removes what it found gone. Repeated commands change nothing."""

    def __init__(
        self, wire: Wire, keys: Keys, pool: PoolId, name: str, renumbered: Callable[[], Awaitable[None]]
    ) -> None:
        """`wire`: of the index. `name`: the same for all workers that can read each other's blocks.

        `renumbered` tells API replicas the `number`, which is known after the first `check`.
        """
        self._renumbered = renumbered
        self._wire, self._keys, self._name = wire, keys, name
        self._index, self._stores = keys.tiered(pool), keys.stores(pool)
        self._unwritten: list[tuple[Way, list[bytes]]] = []
        self.number = 0

    async def check(self, ledger: TierLedger) -> None:
        """Gives the store a number if it has none, and writes anew what Redis has lost. Raises: StoreDown."""
        before, (found,) = self.number, await self._wire.execute([("HGET", self._stores, self._name)])
        if found is None:
            number = await next_number(self._wire, self._keys)
            _, found = await self._wire.execute(
                [("HSETNX", self._stores, self._name, number), ("HGET", self._stores, self._name)]
            )
        self.number = int(found)
        (count,) = await self._wire.execute([("HGET", self._index[1], packed(self.number))])
        if int(count or 0) < len(ledger):
            self._unwritten.append(("add", ledger.blocks()))
            await self.write(ledger)
        if self.number != before:
            await self._renumbered()

    async def write(self, ledger: TierLedger) -> None:
        """Raises: StoreDown; the next call writes it again."""
        if (changes := ledger.take()) is not None:
            self._unwritten += [("remove", changes.removed), ("add", changes.added)]
        while self._unwritten:
            await self._wire.execute([*index_commands(self._index, self.number, *self._unwritten[0])])
            del self._unwritten[0]
