"""Keeps a pool's store within its bound, and the index of it true. One worker of the pool does so at a time."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from threading import Thread

from app.errors import StoreDown
from app.ids import WorkerId
from app.kv.store_index import StoreIndex, short_name
from app.kv_store.block_store import BlockStore, Stored
from app.kv_store.bound import superfluous
from app.store import Command, Wire
from app.telemetry import logger

log = logger(__name__)


class StoreCleaner:
    def __init__(
        self, store: BlockStore, most: float, index: StoreIndex, wire: Wire, lock: str, worker: WorkerId, every_s: float
    ) -> None:
        """`most`: bytes. `wire`: of the index; `lock`: the key that says who cleans."""
        self._store, self._most, self._index, self._every_s = store, most, index, every_s
        self._wire, self._lock, self._worker = wire, lock, worker

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                if self._index.number and await self._is_mine():
                    await self.look()
            except StoreDown as exc:
                log.warning("store_not_cleaned", error=exc.message)
            except Exception:  # a store's own client raises what it likes; the next look may go better
                log.exception("store_not_cleaned")
            await asyncio.sleep(self._every_s)

    async def look(self) -> None:
        """Raises: StoreDown, and what the store raises."""
        known = await self._index.known()  # first: a block is there before it is known
        found, removed = await self._bounded()
        if gone := missing(known, found):
            await self._index.remove(gone)
        if removed or gone:
            log.info("store_cleaned", removed=removed, forgotten=len(gone), left=len(found))

    async def _bounded(self) -> tuple[list[Stored], int]:
        """`_bound`, in a thread for which a worker that ends doesn't wait: the store may hang."""
        ended = Future[tuple[list[Stored], int]]()
        ended.set_running_or_notify_cancel()

        def bound() -> None:
            try:
                ended.set_result(self._bound())
            except Exception as exc:  # noqa: BLE001 (a store's own client raises what it likes)
                ended.set_exception(exc)

        Thread(target=bound, name="store-cleaner", daemon=True).start()
        return await asyncio.wrap_future(ended)

    def _bound(self) -> tuple[list[Stored], int]:
        """What is left, and how much was removed. Blocks."""
        found = [*self._store.all()]
        removed = superfluous(found, self._most, time.time())
        for one in removed:
            self._store.delete(one.path)
        gone = {one.path for one in removed}
        return [one for one in found if one.path not in gone], len(removed)

    async def _is_mine(self) -> bool:
        """Raises: StoreDown."""
        lasts = round(3000 * self._every_s)  # ms
        claim: list[Command] = [("SET", self._lock, self._worker, "NX", "PX", lasts), ("GET", self._lock)]
        _, holder = await self._wire.execute(claim)
        if holder != self._worker.encode():
            return False
        await self._wire.execute([("PEXPIRE", self._lock, lasts)])
        return True


def missing(known: Mapping[bytes, bytes], found: Iterable[Stored]) -> dict[bytes, bytes]:
    """Those of `known` that have no file. A block's file is called `<hash>-<group>`."""
    there = set()
    for one in found:
        name = one.path.rpartition("/")[2].partition("-")[0]
        try:
            there.add(short_name(bytes.fromhex(name)))
        except ValueError:
            continue  # somebody else's file
    return {name: ours for name, ours in known.items() if name not in there}
