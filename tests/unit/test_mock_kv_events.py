"""KV events on the wire: what is published, and how to get what was missed."""

import asyncio
import math
from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest
import zmq
import zmq.asyncio

from app.engines.mock.engine import MockEngine
from app.errors import EngineFailed, RequestError
from app.kv.events import BlockStored, decode_batch
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


async def replay(context: zmq.asyncio.Context, engine: MockEngine, first: int, rank: int = 0) -> list[list[bytes]]:
    source = engine.kv_events()[rank]
    with context.socket(zmq.DEALER) as dealer:
        dealer.connect(source.replay_endpoint)
        await dealer.send_multipart([b"", first.to_bytes(8, "big")])
        batches = []
        while (frames := await asyncio.wait_for(dealer.recv_multipart(), 5))[1:] != [b"", b"\xff" * 8, b""]:
            batches.append(frames)
        return batches


async def test_missed_batches_are_replayed(context: zmq.asyncio.Context, engine: MockEngine) -> None:
    """The replay begins at the number asked for, as far back as the buffer goes, and has all that is left."""
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
    second = MockEngine(pool(kv_events={"endpoint": engine.kv_events()[0].endpoint}))
    with pytest.raises(EngineFailed, match=r"args\.kv_events"):
        await second.start()
    await second.close()


async def test_events_can_be_turned_off() -> None:
    """Routing then guesses what the cache holds."""
    async with started(pool(speedup=math.inf, kv_events=None)) as engine:
        assert engine.kv_events() == {}


async def test_each_data_parallel_rank_has_its_own_cache_and_events(context: zmq.asyncio.Context) -> None:
    """A prompt that rank 1 has computed is news to rank 0."""
    settings = pool(speedup=math.inf, kv_events={"topic": "kv-topic"}).model_copy(update={"data_parallel_size": 2})
    async with started(settings) as engine:
        for name, rank in (("a", 1), ("b", 1), ("c", 0)):
            outputs = await run(engine, msgspec.structs.replace(request(name, 64, max_tokens=1), rank=rank))
            assert outputs[0].cached_tokens == (32 if name == "b" else 0)
        assert [len(await replay(context, engine, 0, rank)) for rank in (0, 1)] == [1, 1]
        with pytest.raises(RequestError, match="rank=2"):
            await run(engine, msgspec.structs.replace(request("d", 64), rank=2))


async def test_prompts_of_other_salts_share_no_blocks(context: zmq.asyncio.Context, engine: MockEngine) -> None:
    """The events say which salt a first block has, as vLLM's do."""
    for name, salt, cached_tokens in (("a", "x", 0), ("b", "y", 0), ("c", None, 0), ("d", "x", 32)):
        outputs = await run(engine, msgspec.structs.replace(request(name, 64, max_tokens=1), cache_salt=salt))
        assert outputs[0].cached_tokens == cached_tokens
    batches = [decode_batch(frames[3]) for frames in await replay(context, engine, 0)]
    keys = [event.extra_keys for batch in batches for event in batch.events if isinstance(event, BlockStored)]
    assert keys == [[["x"], None], [["y"], None], None]
