"""Follows an engine's KV events into the prefix index: in order and without gaps. On the engine's loop."""

import asyncio
import math
import time

import zmq
import zmq.asyncio

from app.engines.base import KvEventSource
from app.kv.blocks import weights_keys
from app.kv.events import decode_batch
from app.kv.hybrid_ledger import HybridLedger
from app.kv.ledger import Ledger
from app.kv.prefix_index import Blocks, KvIndex
from app.kv.store_index import StoreIndex
from app.running.loops import keep
from app.telemetry import logger

log = logger(__name__)

_CHECK_S = 5.0  # how often to ask for lost last events, and whether Redis has all of it
_REPLAY_S = 5.0  # how long the engine may take to answer
_END = -1  # the sequence number that ends a replay


class KvEventFeed:
    """One engine rank's events, followed from its start."""

    def __init__(
        self,
        source: KvEventSource,
        ledger: Ledger | HybridLedger,
        index: KvIndex,
        check_s: float = _CHECK_S,
        *,
        beginnings: KvIndex | None = None,
        host: KvIndex | None = None,
        store: StoreIndex | None = None,
    ) -> None:
        """`beginnings`: of a ledger that tells them. `host`, `store`: of the tiers that the engine has."""
        self._source, self._ledger, self._check_s = source, ledger, check_s
        self._indices: list[tuple[Blocks, KvIndex]] = [(ledger, index)]
        if beginnings is not None and isinstance(ledger, HybridLedger) and ledger.beginnings is not None:
            self._indices.append((ledger.beginnings, beginnings))
        if host is not None:
            self._indices.append((ledger.host, host))
        self._store = store
        self._warned = False
        self._unread = 0  # batches: at least as many blocks
        self._expected = 0  # the next batch's sequence number
        self._following = asyncio.Lock()
        self._dirty = asyncio.Event()
        self._asked = self._checked = time.monotonic()  # when the engine, and when Redis
        if store is not None:  # what other workers have stored is known before this one's first block
            self._checked = -math.inf
            self._dirty.set()
        self._broken: set[KvIndex] = set()  # those of which a part may be written
        self._unwritten: list[asyncio.Future[None]] = []  # done when the ledger, as it was then, is in the index
        self._context = zmq.asyncio.Context()
        self._sub = self._context.socket(zmq.SUB)
        self._sub.set_hwm(0)  # unbounded: lost events would have to be replayed
        self._sub.subscribe(source.topic.encode())
        self._sub.connect(source.endpoint)

    async def run(self) -> None:
        """Follows the engine's KV events and writes the index, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(keep("kv_events_not_read", self._follow, 0))
                group.create_task(keep("kv_index_not_written", self._write_on, 0))
        finally:
            self._context.destroy(linger=0)

    @property
    def left_out(self) -> int:
        """Blocks of the engine's events that could not be placed; of a batch that could not be read, one."""
        return self._ledger.unknown + self._unread

    @property
    def is_blind(self) -> bool:
        """Whether that is most of them, so that the index tells little of this cache."""
        return self.left_out > self._ledger.placed

    @property
    def clears(self) -> int:
        """Number of times that the engine has said that it cleared its cache."""
        return self._ledger.clears

    async def forget(self, clears: int, weights: str | None = None) -> None:
        """Clears the index after the engine cleared its cache; `clears`: the property before that. Returns when done.

        Reads the engine's earlier events first. If one of them was the clear, later blocks stay. `weights`: the version
        that computes all later blocks, if it has changed.
        """
        async with self._following:
            await self._catch_up()
            if self._ledger.clears == clears:
                self._ledger.clear()
            if weights is not None:
                self._ledger.keys = weights_keys(weights)
            completion = asyncio.get_running_loop().create_future()
            self._unwritten.append(completion)
            self._dirty.set()
        await completion

    async def _follow(self) -> None:
        while True:
            has_message = await self._sub.poll(self._check_s * 1000)
            async with self._following:
                if has_message:
                    _topic, seq, payload = await self._sub.recv_multipart()
                    await self._receive(int.from_bytes(seq, "big"), payload)
                if time.monotonic() - self._asked > self._check_s:
                    await self._catch_up()
                    self._asked = time.monotonic()
                    self._dirty.set()  # makes the writer look as well

    async def _receive(self, seq: int, payload: bytes) -> None:
        if seq > self._expected:
            await self._catch_up()
            if seq > self._expected:
                self._lost(seq)
        if seq == self._expected:
            self._apply(payload)

    def _apply(self, payload: bytes) -> None:
        try:
            self._ledger.apply(decode_batch(payload).events)
        except Exception as exc:  # noqa: BLE001 (asked for again, they would be the same)
            log.error("kv_events_not_understood", error=type(exc).__name__)
            self._unread += 1
            self._ledger.clear()  # they may have removed blocks
        self._expected += 1
        self._dirty.set()
        if self._ledger.unknown and not self._warned:
            self._warned = True
            log.warning(
                "kv_blocks_left_out",
                blocks=self._ledger.unknown,
                reason="what they hold, or the group of layers that has them, is not known",
            )

    def _lost(self, first: int) -> None:
        """Batches before `first` are lost, so no known block is certain."""
        log.error("kv_events_lost", batches=first - self._expected)
        self._ledger.clear()
        self._expected = first

    async def _catch_up(self) -> None:
        """Asks the engine for all batches from the expected one on, and applies them."""
        socket = self._context.socket(zmq.DEALER)
        try:
            socket.connect(self._source.replay_endpoint)
            await socket.send_multipart((b"", self._expected.to_bytes(8, "big")))
            async with asyncio.timeout(_REPLAY_S):
                while True:
                    _empty, _topic, raw, payload = await socket.recv_multipart()
                    seq = int.from_bytes(raw, "big", signed=True)
                    if seq == _END:
                        return
                    if seq > self._expected:
                        self._lost(seq)
                    if seq == self._expected:
                        self._apply(payload)
        except TimeoutError:
            log.warning("kv_replay_not_answered")
        finally:
            socket.close(linger=0)

    async def _write_on(self) -> None:
        while True:
            await self._dirty.wait()
            await self._write()

    async def _write(self) -> None:
        """Raises: StoreDown."""
        self._dirty.clear()
        waiting = len(self._unwritten)
        try:
            sizes = await self._write_changes()
            for completion in self._unwritten[:waiting]:
                if not completion.done():  # its waiter may have been cancelled
                    completion.set_result(None)
            del self._unwritten[:waiting]
            if time.monotonic() - self._checked > self._check_s:
                self._checked = time.monotonic()
                await self._check(sizes)
        except Exception:
            self._dirty.set()
            raise

    async def _write_changes(self) -> dict[KvIndex, int]:
        """Returns how many blocks each has now. Raises: StoreDown."""
        sizes = {}
        for ledger, index in self._indices:
            changes, sizes[index] = ledger.take(), len(ledger)
            if index in self._broken:
                await index.rebuild(ledger)
            elif changes is not None:
                self._broken.add(index)
                await index.write(changes)
            self._broken.discard(index)
        if self._store is not None:
            await self._store.write(self._ledger.store)
        return sizes

    async def _check(self, sizes: dict[KvIndex, int]) -> None:
        """Whether Redis has all of it. Raises: StoreDown."""
        for index, size in sizes.items():
            if not await index.is_whole(size):  # Redis came back without its last second, or empty
                self._broken.add(index)
                log.warning("kv_index_rebuilt", blocks=size)
                self._dirty.set()
        if self._store is not None:
            await self._store.check(self._ledger.store)
            await self._store.forget(self._ledger.store)
