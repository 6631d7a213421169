"""Transfers that are copied on the event loop, in pieces."""

import asyncio
import secrets
from collections.abc import AsyncIterator

import pytest

from app.engines.mock.memory import KvMemory
from app.kv.nixl import Nixl

pytestmark = pytest.mark.integration

BLOCKS, SIZE = 8, 4 * 2**20  # 32 MiB: several pieces, and no thread
Side = tuple[Nixl, KvMemory, list[bytes]]


@pytest.fixture
async def sides() -> AsyncIterator[list[Side]]:
    """Two agents with their memories and the notes that they got; the first one has read from the second before."""
    made: list[Side] = []
    for _ in range(2):
        memory, notes = KvMemory(BLOCKS, SIZE), list[bytes]()
        nixl = Nixl(f"test-{secrets.token_hex(4)}", notes.append)
        await nixl.start(memory.address, memory.size)
        made.append((nixl, memory, notes))
    (reader, here, _), (holder, there, notes) = made
    holder.expecting = 1
    await reader.connect(holder.name, holder.metadata)
    await reader.move("READ", holder.name, [(here.address, there.address)], SIZE, b"first", timeout_s=10)
    await come(notes, b"first")
    yield made
    for nixl, _, _ in made:
        await nixl.close()


async def come(notes: list[bytes], note: bytes) -> None:
    async with asyncio.timeout(10):
        while note not in notes:  # noqa: ASYNC110 (NIXL has no event for it)
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_all_pieces_come_and_then_the_note_though_the_reader_is_cancelled(
    sides: list[Side], cancelled: bool
) -> None:
    """Between two of them others have a turn, who may cancel it; the holder waits for the note."""
    (reader, here, _), (holder, there, notes) = sides
    for block in range(BLOCKS):
        there.mark(block, 1000 + block)
    pairs = [(here.address + i * SIZE, there.address + i * SIZE) for i in range(BLOCKS)]
    moving = asyncio.create_task(reader.move("READ", holder.name, pairs, SIZE, b"read", timeout_s=10))
    await asyncio.sleep(0)  # it begins
    assert here.holds(0, 1000)
    assert not here.holds(BLOCKS - 1, 1000 + BLOCKS - 1), "others have a turn before its last piece"
    if cancelled:
        moving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await moving
    else:
        await moving
    assert all(here.holds(block, 1000 + block) for block in range(BLOCKS))
    await come(notes, b"read")
