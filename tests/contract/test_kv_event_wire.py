"""The mock's KV events against vLLM's own decoder."""

import asyncio
import math

import msgspec
import pytest
import zmq
import zmq.asyncio

from tests.unit.test_mock_engine import pool, request, run, started


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
async def test_vllms_own_types_decode_the_mocks_events() -> None:
    """A subscriber that was written for vLLM needs no change."""
    from vllm.distributed import kv_events

    decode = msgspec.msgpack.Decoder(kv_events.KVEventBatch).decode
    settings = pool(speedup=math.inf, total_blocks=8, max_model_len=256, kv_events={"topic": "kv-topic"})
    async with started(settings) as engine:
        source = engine.kv_events()[0]
        events = []
        with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as sub:
            sub.connect(source.endpoint)
            sub.subscribe("kv-topic")
            await asyncio.sleep(0.1)  # a PUB socket drops what it sends before the subscription arrives
            await run(engine, request("a", 96, max_tokens=1))
            await run(engine, request("b", 200, first=900, max_tokens=1))
            await engine.reset_prefix_cache()
            for number in range(3):
                topic, seq, payload = await asyncio.wait_for(sub.recv_multipart(), 5)
                assert (topic, int.from_bytes(seq, "big")) == (b"kv-topic", number)
                events.extend(decode(payload).events)
    first_event = events[0]
    assert isinstance(first_event, kv_events.BlockStored)
    assert (len(first_event.block_hashes), first_event.parent_block_hash, first_event.block_size) == (3, None, 32)
    assert first_event.token_ids == request("a", 96).prompt
    assert any(isinstance(event, kv_events.BlockRemoved) for event in events)
    assert isinstance(events[-1], kv_events.AllBlocksCleared)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_sglangs_prefix_tree_has_the_parts_that_the_plugin_knows() -> None:
    """A part of a node that is not told of would let a prompt resume where it can't."""
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

    platforms = {"c128", "auxiliary_swa"}  # which the plugin says nothing of
    assert {str(part) for part in ComponentType} == {"full", "swa", "mamba"} | platforms
