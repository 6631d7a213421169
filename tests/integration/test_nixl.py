"""Transfers that are copied on the event loop, in pieces."""

import asyncio
import secrets
from collections.abc import AsyncIterator

import psutil
import pytest

from app.engines.mock.memory import KvMemory
from app.kv import nixl as nixl_module
from app.kv.nixl import Nixl
from tests.background import until

pytestmark = pytest.mark.integration

BLOCKS, SIZE = 8, 4 * 2**20  # 32 MiB: several pieces, and no thread
Side = tuple[Nixl, KvMemory, list[bytes]]


@pytest.fixture
async def sides() -> AsyncIterator[list[Side]]:
    """Two agents with their memories and the notes that they got; the first one has read from the second before."""
    agents: list[Side] = []
    for _ in range(2):
        memory, notes = KvMemory(BLOCKS, SIZE), list[bytes]()
        nixl = Nixl(f"test-{secrets.token_hex(4)}", notes.append)
        await nixl.start(memory.address, memory.size)
        agents.append((nixl, memory, notes))
    (reader, here, _), (holder, there, notes) = agents
    holder.expecting = 1
    await reader.connect(holder.name, holder.metadata)
    await reader.move("READ", holder.name, [(here.address, there.address)], SIZE, b"first", timeout_s=10)
    await come(notes, b"first")
    yield agents
    for nixl, _, _ in agents:
        await nixl.close()


async def come(notes: list[bytes], note: bytes) -> None:
    await until(lambda: note in notes)


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


async def test_peers_that_come_and_go_leave_no_descriptors_and_no_more_than_so_many_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody tells a reader that the process of a peer has ended."""
    monkeypatch.setattr(nixl_module, "_MOST_PEERS", 2)
    memory, descriptor_counts = KvMemory(BLOCKS, SIZE), []
    reader = Nixl(f"test-{secrets.token_hex(4)}", lambda _: None)
    await reader.start(memory.address, memory.size)
    for _ in range(10):
        there, notes = KvMemory(BLOCKS, SIZE), list[bytes]()
        peer = Nixl(f"test-{secrets.token_hex(4)}", notes.append)
        await peer.start(there.address, there.size)
        await reader.connect(peer.name, peer.metadata)
        await reader.move("READ", peer.name, [(memory.address, there.address)], SIZE, b"read", timeout_s=10)
        await come(notes, b"read")
        await peer.close()
        descriptor_counts.append(psutil.Process().num_fds())
    assert descriptor_counts[-1] <= descriptor_counts[2], "the first ones opened what stays open"
    assert len(reader._peers) == 2
    await reader.close()


async def test_the_peer_that_was_used_last_stays_connected(sides: list[Side], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nixl_module, "_MOST_PEERS", 2)
    (reader, here, _), (holder, there, _) = sides
    others = [Nixl(f"test-{secrets.token_hex(4)}", lambda _: None) for _ in range(2)]
    for other in others:
        memory = KvMemory(1, SIZE)
        await other.start(memory.address, memory.size)
        await reader.connect(holder.name, holder.metadata)
        await reader.connect(other.name, other.metadata)
    assert list(reader._peers) == [holder.name, others[1].name]
    await reader.move("READ", holder.name, [(here.address, there.address)], SIZE, b"again", timeout_s=10)
    for other in others:
        await other.close()
