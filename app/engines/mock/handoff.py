"""One rank's handoffs: lends the KV of prompts that it computed, and fetches KV from other engines."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from itertools import count

import msgspec

from app.engines.base import GenerateRequest
from app.engines.mock.args import HandoffArgs
from app.engines.mock.blocks import BlockManager, BlockTable
from app.engines.mock.choice import MockChoice
from app.engines.mock.link import KvPlace, Link
from app.engines.mock.rendezvous import Meeting, Offer, Rooms
from app.errors import HandoffFailed
from app.messages.handoff import Handoff, KvHandle, Rendezvous
from app.messages.job import KvTransfer
from app.store import clock

_LOOK_S = 0.005  # between two looks for expired leases


class Handoffs:
    """One rank's handoffs.

    In sequence, a computed prompt's blocks stay held until the other engine frees them, or the lease expires.
    """

    def __init__(
        self,
        args: HandoffArgs,
        link: Callable[[Callable[[bytes], None]], Link],
        blocks: BlockManager,
        rooms: Rooms,
        on_free: Callable[[], None],
    ) -> None:
        """`on_free`: called when lent blocks become free. Raises: SettingsError."""
        self._args, self._blocks, self._rooms, self._freed = args, blocks, rooms, on_free
        self.link = link(self._noted)
        if self.link.memory is not None:
            blocks.on_commit = self.link.memory.mark
        self._lent: dict[str, tuple[BlockTable, float]] = {}  # id → blocks, the lease's end on the loop's clock
        self._ids = count()
        self._written: dict[int, asyncio.Future[None]] = {}  # room → done when its KV has been written here
        self._pushing: set[asyncio.Future[None]] = set()
        self._expiring: asyncio.Task[None] | None = None

    @property
    def lent_blocks(self) -> int:
        return len({block for table, _ in self._lent.values() for block in table.blocks})

    def lend(self, choice: MockChoice) -> KvHandle:
        """Keep the blocks of a computed prompt for another engine."""
        self._mark_tail(choice)
        table, choice.table = choice.table, choice.new_table()
        blocks = table.blocks[: -(-choice.prompt_len // self._blocks.block_size)]
        lent_id = f"{choice.request.id}/{next(self._ids)}"
        # In a simulation the other engine can't free the blocks: they are kept for the transfer's time.
        keep_s = self._args.lease_s if self.link.real else min(self._args.lease_s, self.link.transfer_s(len(blocks)))
        self._lent[lent_id] = (table, asyncio.get_running_loop().time() + keep_s)
        self.link.expect(+1)
        if self._expiring is None or self._expiring.done():
            self._expiring = asyncio.create_task(self._expire(), name="mock-leases")
        params = msgspec.to_builtins(self.link.place(blocks, lent_id))
        return KvHandle(self.link.name, clock.now() + self._args.lease_s, choice.prompt_len, params)

    async def push(self, choice: MockChoice, meeting: Meeting) -> None:
        """Write a computed prompt's KV to the decode engine at the rendezvous. Raises: HandoffFailed."""
        self._mark_tail(choice)
        table, choice.table = choice.table, choice.new_table()
        over = asyncio.get_running_loop().create_future()
        self._pushing.add(over)
        try:
            offer = await meeting.come()
            block_count = -(-choice.prompt_len // self._blocks.block_size)
            self.link.check(offer.place)
            if offer.tokens != choice.prompt_len or len(offer.place.blocks) + offer.first != block_count:
                raise HandoffFailed("The decode engine expects another prompt.")
            pairs = list(zip(table.blocks[offer.first : block_count], offer.place.blocks, strict=True))
            note = b"written %d" % offer.room
            if pairs:
                await self.link.move("WRITE", offer.place, pairs, note)
            else:
                await self.link.tell(offer.place, note)
        finally:
            self._blocks.release(table)
            self._freed()
            self._pushing.discard(over)
            over.set_result(None)

    def check(self, request: GenerateRequest) -> None:
        """Raises: HandoffFailed if this prompt's KV can't be fetched."""
        if isinstance(request.handoff, KvHandle):
            self._source(request.handoff, len(request.prompt))

    async def fetch(self, choice: MockChoice) -> KvTransfer:
        """Fetch the uncached KV of an admitted choice's prompt into its blocks.

        Returns or raises only when nothing writes into the blocks any more. Raises: HandoffFailed.
        """
        handoff, size = choice.request.handoff, self._blocks.block_size
        assert handoff is not None
        first = choice.computed // size
        blocks = choice.table.blocks[first : -(-choice.prompt_len // size)]
        began = time.perf_counter()
        if isinstance(handoff, KvHandle):
            await self._pull(handoff, choice, first, blocks)
        else:
            await self._receive(handoff, choice, first, blocks)
        seconds = time.perf_counter() - began
        if self.link.memory is not None:
            digests = self._blocks.digests(choice.table, choice.tokens[: choice.prompt_len])[first:]
            if not all(map(self.link.memory.holds, blocks, digests)):
                raise HandoffFailed("The fetched KV is not of this prompt.")
        tokens = max(0, choice.prompt_len - choice.computed)
        return KvTransfer(tokens, len(blocks) * self._args.block_bytes, seconds)

    async def decline(self, handoff: Handoff) -> None:
        """Tell the other engine, if it is reachable, that its KV won't be fetched."""
        with contextlib.suppress(HandoffFailed, TimeoutError):
            if isinstance(handoff, Rendezvous):
                await self._rooms.leave(handoff)
            else:
                place = _place(handoff)
                async with asyncio.timeout(self._args.timeout_s):
                    await self.link.tell(place, _free(place))

    async def close(self) -> None:
        await asyncio.gather(*self._pushing)
        if self._expiring is not None:
            self._expiring.cancel()
            await asyncio.gather(self._expiring, return_exceptions=True)
        for lent_id in list(self._lent):
            self._free(lent_id)
        await self.link.close()

    async def _pull(self, loan: KvHandle, choice: MockChoice, first: int, indices: list[int]) -> None:
        place = self._source(loan, choice.prompt_len)
        if indices:
            await self.link.move("READ", place, list(zip(indices, place.blocks[first:], strict=True)), _free(place))
            self._source(loan, choice.prompt_len)  # if the lease has expired, the blocks may have had other KV
        else:
            await self.link.tell(place, _free(place))

    async def _receive(self, room: Rendezvous, choice: MockChoice, first: int, indices: list[int]) -> None:
        place = self.link.place(indices, choice.request.id)
        offer = Offer(room.room, place, first, choice.prompt_len, self._args.timeout_s)
        arrival = self._written[room.room] = asyncio.get_running_loop().create_future()
        self.link.expect(+1)
        try:
            await self._rooms.visit(room, offer, arrival if self.link.real else None)
        finally:
            self.link.expect(-1)
            del self._written[room.room]

    def _source(self, loan: KvHandle, tokens: int) -> KvPlace:
        """The place of the lent KV. Raises: HandoffFailed when it doesn't fit here, or has expired."""
        place = _place(loan)
        self.link.check(place)
        if place.name != loan.holder:
            raise HandoffFailed(f"Expected the holder {loan.holder}, found {place.name}.")
        if loan.tokens != tokens or len(place.blocks) != -(-tokens // self._blocks.block_size):
            raise HandoffFailed(f"{loan.holder} has lent another prompt.")
        if clock.now() >= loan.expires:
            raise HandoffFailed(f"{loan.holder}'s lease has expired.")
        return place

    def _mark_tail(self, choice: MockChoice) -> None:
        """Mark a last block that isn't full: it is not cached, and so not marked by `on_commit`."""
        if self.link.memory is not None and choice.prompt_len % self._blocks.block_size:
            digests = self._blocks.digests(choice.table, choice.tokens[: choice.prompt_len])
            self.link.memory.mark(choice.table.blocks[len(digests) - 1], digests[-1])

    def _noted(self, note: bytes) -> None:
        what, _, name = note.partition(b" ")
        if what == b"free":
            self._free(name.decode())
        elif what == b"written" and name.isdigit():
            arrival = self._written.get(int(name))
            if arrival is not None and not arrival.done():
                arrival.set_result(None)

    def _free(self, lent_id: str) -> None:
        lease = self._lent.pop(lent_id, None)
        if lease is not None:
            self._blocks.release(lease[0])
            self.link.expect(-1)
            self._freed()

    async def _expire(self) -> None:
        clock = asyncio.get_running_loop().time
        while self._lent:
            for lent_id in [name for name, (_, until) in self._lent.items() if until <= clock()]:
                self._free(lent_id)
            await asyncio.sleep(_LOOK_S)


def _place(loan: KvHandle) -> KvPlace:
    """Raises: HandoffFailed."""
    try:
        return msgspec.convert(loan.params, KvPlace)
    except msgspec.ValidationError as exc:
        raise HandoffFailed(f"{loan.holder} sent an unknown handoff: {exc}") from exc


def _free(place: KvPlace) -> bytes:
    return f"free {place.request}".encode()
