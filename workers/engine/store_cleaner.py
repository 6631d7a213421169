"""Keeps a pool's store within its bound, and the index of it true. One worker of the pool does so at a time."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Set
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread
from typing import NamedTuple

from redis.exceptions import RedisError

from app.ids import WorkerId
from app.kv.store_index import StoreIndex, short_name
from app.kv_store.block_store import BlockStore, StoredBlock
from app.kv_store.bound import superfluous
from app.kv_store.salts import is_of
from app.running.loops import keep
from app.store import Command, Wire
from app.telemetry import logger
from workers.engine.erased_salts import ErasedSalts

log = logger(__name__)


_ERASED_S = 5.0  # how often it looks whether a salt was erased


class _Bounded(NamedTuple):
    """Blocks."""

    left: list[StoredBlock]
    removed: int
    erased: dict[str, int]  # of these, by label


class StoreCleaner:
    def __init__(
        self,
        store: BlockStore,
        most: float,
        index: StoreIndex,
        wire: Wire,
        lock: str,
        worker: WorkerId,
        every_s: float,
        erased_salts: ErasedSalts | None = None,
    ) -> None:
        """`most`: bytes. `wire`: of the index; `lock`: the key that says who cleans. `erased_salts`: None: no salts."""
        self._erased, self._done = erased_salts, frozenset[str]()  # labels whose blocks were removed before
        self._store, self._most, self._index, self._every_s = store, most, index, every_s
        self._wire, self._lock, self._worker = wire, lock, worker
        self.unwanted: Callable[[], Set[bytes]] = frozenset  # our hashes of blocks that are to go
        self.soon = asyncio.Event()  # set when there are new ones

    async def run(self) -> None:
        """Cleans the store again and again, until cancelled."""
        await keep("store_not_cleaned", self._turn, self._pause)

    async def _turn(self) -> None:
        """Raises: StoreDown, RedisError, and what the store's own client raises."""
        if self._index.number and await self._is_mine():
            await self.look()

    async def _pause(self) -> None:
        """Waits until there is something to do."""
        end = time.monotonic() + self._every_s
        while not self.soon.is_set() and (remaining_s := end - time.monotonic()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(remaining_s, _ERASED_S)):
                    await self.soon.wait()
            with suppress(RedisError, OSError):  # the next look says so
                if await self._labels() - self._done:
                    break
        self.soon.clear()

    async def _labels(self) -> frozenset[str]:
        return frozenset() if self._erased is None else await self._erased.labels()

    async def look(self) -> None:
        """Raises: StoreDown, RedisError, and what the store raises."""
        labels = await self._labels()
        indexed_blocks = await self._index.known()  # first: a block is there before it is known
        unwanted_hashes = self.unwanted()
        names = {name for name, ours in indexed_blocks.items() if ours in unwanted_hashes}
        remaining_blocks, removed_count, erased_counts = await self._bounded(names, labels)
        if self._erased is not None and labels:
            await self._erased.removed(erased_counts)
            self._done = labels
        if missing_blocks := missing(indexed_blocks, remaining_blocks):
            await self._index.remove(missing_blocks)
        if removed_count or missing_blocks:
            log.info("store_cleaned", removed=removed_count, forgotten=len(missing_blocks), left=len(remaining_blocks))

    async def _bounded(self, names: Set[bytes], labels: Set[str]) -> "_Bounded":
        """`_bound`, in a thread for which a worker that ends doesn't wait: the store may hang."""
        outcome = Future[_Bounded]()
        outcome.set_running_or_notify_cancel()

        def bound() -> None:
            try:
                outcome.set_result(self._bound(names, labels))
            except Exception as exc:  # noqa: BLE001 (a store's own client raises what it likes)
                outcome.set_exception(exc)

        Thread(target=bound, name="store-cleaner", daemon=True).start()
        return await asyncio.wrap_future(outcome)

    def _bound(self, names: Set[bytes], labels: Set[str]) -> "_Bounded":
        """`names`: short ones, of blocks that are to go; `labels`: of salts whose blocks are."""
        all_blocks = [*self._store.all()]
        erased_blocks = {label: [one for one in all_blocks if is_of(one.path, {label})] for label in labels}
        erased_paths = {one.path for blocks in erased_blocks.values() for one in blocks}
        candidates = [one for one in all_blocks if _name(one) not in names and one.path not in erased_paths]
        superfluous_paths = {one.path for one in superfluous(candidates, self._most, time.time())}
        remaining_blocks = [one for one in candidates if one.path not in superfluous_paths]
        for path in {one.path for one in all_blocks} - {one.path for one in remaining_blocks}:
            self._store.delete(path)
        return _Bounded(
            remaining_blocks,
            len(all_blocks) - len(remaining_blocks),
            {label: len(blocks) for label, blocks in erased_blocks.items()},
        )

    async def _is_mine(self) -> bool:
        """Raises: StoreDown."""
        lasts = round(3000 * self._every_s)  # ms
        claim: list[Command] = [("SET", self._lock, self._worker, "NX", "PX", lasts), ("GET", self._lock)]
        _, holder = await self._wire.execute(claim)
        if holder != self._worker.encode():
            return False
        await self._wire.execute([("PEXPIRE", self._lock, lasts)])
        return True


def missing(places: Mapping[bytes, bytes], blocks: Iterable[StoredBlock]) -> dict[bytes, bytes]:
    """The blocks of `places` that have no file. A block's file is called `<hash>-<group>`."""
    there = {_name(one) for one in blocks}
    return {name: ours for name, ours in places.items() if name not in there}


def _name(one: StoredBlock) -> bytes | None:
    """The short one of the block; None for somebody else's file."""
    try:
        return short_name(bytes.fromhex(one.path.rpartition("/")[2].partition("-")[0]))
    except ValueError:
        return None
