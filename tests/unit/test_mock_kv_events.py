"""KV events on the wire: what is published, and how to get what was missed."""

import asyncio
import math
from collections.abc import AsyncIterator, Iterator

import pytest
import zmq
import zmq.asyncio

from app.engines.mock.engine import MockEngine
from app.errors import EngineFailed
from tests.unit.test_mock_engine import pool, request, run, started


@pytest.fixture
def context() -> Iterator[zmq.asyncio.Context]:
    with zmq.asyncio.Context() as context:
        yield context


@pytest.fixture
async def engine() -> AsyncIterator[MockEngine]:
    settings = {"topic": "kv-topic", "buffer_steps": 3}
    async with started(pool(speedup=math.inf, total_blocks=8, max_model_len=256, kv_events=settings)) as engine:
        yield engine


async def replay(context: zmq.asyncio.Context, engine: MockEngine, first: int) -> list[list[bytes]]:
    source = engine.kv_events()
    assert source is not None
    with context.socket(zmq.DEALER) as dealer:
        dealer.connect(source.replay_endpoint)
        await dealer.send_multipart([b"", first.to_bytes(8, "big")])
        batches = []
        while (frames := await asyncio.wait_for(dealer.recv_multipart(), 5))[1:] != [b"", b"\xff" * 8, b""]:
            batches.append(frames)
        return batches


async def test_missed_batches_are_replayed(context: zmq.asyncio.Context, engine: MockEngine) -> None:
    """From the number asked for, as far back as the buffer goes, to all of what is left."""
    for i in range(5):
        await run(engine, request(f"r{i}", 64, first=300 + 100 * i, max_tokens=1))
    assert [int.from_bytes(frames[2], "big") for frames in await replay(context, engine, 3)] == [3, 4]
    everything = await replay(context, engine, 0)
    assert [int.from_bytes(frames[2], "big") for frames in everything] == [2, 3, 4]
    assert {frames[1] for frames in everything} == {b"kv-topic"}


async def test_a_cached_prompt_makes_no_events(context: zmq.asyncio.Context, engine: MockEngine) -> None:
    """Events tell of changes."""
    await run(engine, request("a", 64, max_tokens=1))
    await run(engine, request("b", 64, max_tokens=1))
    assert len(await replay(context, engine, 0)) == 1


async def test_an_endpoint_in_use_fails_the_load(engine: MockEngine) -> None:
    """Two engines can't publish on one port."""
    source = engine.kv_events()
    assert source is not None
    with pytest.raises(EngineFailed, match=r"args\.kv_events"):
        await MockEngine(pool(kv_events={"endpoint": source.endpoint})).start()


async def test_without_settings_nothing_is_published() -> None:
    """Events cost time, so they are asked for."""
    async with started(pool(speedup=math.inf)) as engine:
        assert engine.kv_events() is None
