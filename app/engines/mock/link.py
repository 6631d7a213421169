"""Moves KV between the blocks of two ranks: with NIXL, or through a simulated network card."""

import base64
import secrets
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

from app.engines.mock.args import MockArgs
from app.engines.mock.lane import Lane
from app.engines.mock.memory import KvMemory
from app.errors import HandoffFailed, SettingsError
from app.kv.nixl import Nixl


class KvPlace(Struct, frozen=True):
    """The blocks that have a prompt's KV or shall get it, for the other engine. JSON."""

    name: str  # of the rank, unique for each start
    agent: str  # its NIXL metadata, base64; empty: simulated
    rank: int
    base: int  # address of block 0
    blocks: list[int]
    block_bytes: int
    block_size: int  # tokens
    layout: str
    request: str  # the id of the lent blocks


class Link:
    """One rank's end of the transfers."""

    def __init__(self, args: MockArgs, block_size: int, rank: int, on_note: Callable[[bytes], None]) -> None:
        """Raises: SettingsError (NIXL is configured but not installed)."""
        self._args, self._rank, self._block_size = args.handoff, rank, block_size
        self.name = f"mock-{secrets.token_hex(8)}-{rank}"
        self._lane = Lane(args.handoff.gb_per_s, args.speedup)  # the simulated card
        self._nixl: Nixl | None = None
        self.memory: KvMemory | None = None
        if args.handoff.nixl:
            self._nixl = Nixl(self.name, on_note)
            try:
                self.memory = KvMemory(args.total_blocks, args.handoff.block_bytes)
            except OSError as exc:
                raise SettingsError(f"args.total_blocks={args.total_blocks}: no memory for their KV: {exc}") from exc

    async def start(self) -> None:
        if self._nixl is not None and self.memory is not None:
            await self._nixl.start(self.memory.address, self.memory.size)

    @property
    def real(self) -> bool:
        return self._nixl is not None

    def place(self, blocks: list[int], request: str) -> KvPlace:
        agent = base64.b64encode(self._nixl.metadata).decode() if self._nixl else ""
        base, args = self.memory.address if self.memory else 0, self._args
        return KvPlace(
            self.name,
            agent,
            rank=self._rank,
            base=base,
            blocks=blocks,
            block_bytes=args.block_bytes,
            block_size=self._block_size,
            layout=args.layout,
            request=request,
        )

    def check(self, other: KvPlace) -> None:
        """Raises: HandoffFailed when its blocks differ from ours."""
        for what, theirs, ours in (
            ("block size", other.block_size, self._block_size),
            ("bytes in a block", other.block_bytes, self._args.block_bytes),
            ("layout", other.layout, self._args.layout),
            ("use of NIXL", bool(other.agent), self.real),
        ):
            if theirs != ours:
                raise HandoffFailed(f"{other.name} has another {what}: {theirs!r}, here it is {ours!r}.")

    def expect(self, more: int) -> None:
        """Expect so many more (or fewer) notes from others soon."""
        if self._nixl is not None:
            self._nixl.expecting += more

    async def move(
        self, op: Literal["READ", "WRITE"], other: KvPlace, pairs: Sequence[tuple[int, int]], note: bytes
    ) -> None:
        """Move (own block, other's block) pairs, at least one, then send `note`. Raises: HandoffFailed."""
        size = self._args.block_bytes
        if self._nixl is None or self.memory is None:
            return await self._lane.move(len(pairs) * size)
        await self._connect(other)
        ours = self.memory.address
        addresses = [(ours + here * size, other.base + there * size) for here, there in pairs]
        await self._nixl.move(op, other.name, addresses, size, note, timeout_s=self._args.timeout_s)
        return None

    async def tell(self, other: KvPlace, note: bytes) -> None:
        """Send a note; a simulated link sends none. Raises: HandoffFailed when the other can't be reached."""
        if self._nixl is not None:
            await self._connect(other)
            await self._nixl.tell(other.name, note)

    def transfer_s(self, blocks: int) -> float:
        """Seconds that the simulated card takes."""
        return self._lane.seconds(blocks * self._args.block_bytes)

    async def close(self) -> None:
        if self._nixl is not None:
            await self._nixl.close()
        self._nixl = self.memory = None

    async def _connect(self, other: KvPlace) -> None:
        assert self._nixl is not None
        try:
            metadata = base64.b64decode(other.agent, validate=True)
        except ValueError as exc:
            raise HandoffFailed(f"The metadata of {other.name} is no base64.") from exc
        await self._nixl.connect(other.name, metadata)
