"""Two engines meet while the prompt is computed: the answer is the same, and nobody waits for ever."""

import asyncio
from typing import Any

import pytest

from app.errors import HandoffFailed
from app.messages.handoff import Rendezvous
from tests.disaggregated import again, at_once, engine, idle, request, room_of, run, shown, stats_become


@pytest.mark.parametrize("sampling", [{"temperature": 1.0}, {"n": 2, "temperature": 1.0}, {"max_tokens": 1}])
async def test_at_once_gives_the_same_answer(sampling: dict[str, Any]) -> None:
    """The side that decodes makes all tokens, the first one too."""
    original = request(**sampling)
    async with engine(shape="at_once") as p, engine() as d, engine() as alone:
        outputs, expected_outputs = await at_once(p, d, original), await run(alone, original)
        for i in range(original.sampling.n):
            assert shown(outputs, i) == shown(expected_outputs, i)
        assert d.stats().pulled_tokens == 100
        assert idle(p.stats())
        assert idle(d.stats())


async def test_nobody_waits_for_ever_in_a_room() -> None:
    """Whichever side is alone gives up after its timeout, with nothing held."""
    async with engine(shape="at_once", timeout_s=0.2) as p, engine(timeout_s=0.2) as d:
        with pytest.raises(HandoffFailed):
            await p.prefill(request_in(room_of(p)))
        with pytest.raises(HandoffFailed):
            await run(d, request_in(room_of(p)))
        with pytest.raises(HandoffFailed):
            await run(d, request_in(Rendezvous("127.0.0.1", 1, 5)))
        await stats_become(p, idle)
        await stats_become(d, idle)


def request_in(room: Rendezvous) -> Any:
    return again(request(), handoff=room)


async def test_who_leaves_a_room_tells_the_other() -> None:
    """The other one need not wait for its timeout."""
    slow = {"timeout_s": 20.0, "speedup": 1.0, "prefill_tokens_per_s": 1000.0}
    async with engine(shape="at_once", **slow) as p, engine(timeout_s=20.0) as d:
        room = room_of(p)
        visiting = asyncio.create_task(run(d, request_in(room)))
        computing = asyncio.create_task(p.prefill(request_in(room)))
        await asyncio.sleep(0.05)
        computing.cancel()
        with pytest.raises(HandoffFailed):
            await asyncio.wait_for(visiting, 1)
        room = room_of(p)
        visiting = asyncio.create_task(run(d, request_in(room)))
        await asyncio.sleep(0.05)
        visiting.cancel()
        with pytest.raises(HandoffFailed):
            await asyncio.wait_for(p.prefill(request_in(room)), 1)
        await stats_become(p, idle)
        await stats_become(d, idle)


async def test_two_layouts_don_t_meet() -> None:
    """Both sides hear of it."""
    async with engine(shape="at_once", layout="a") as p, engine(layout="b") as d:
        room = room_of(p)
        both = await asyncio.gather(p.prefill(request_in(room)), run(d, request_in(room)), return_exceptions=True)
        assert [type(result) for result in both] == [HandoffFailed, HandoffFailed]
        assert idle(p.stats())
        await stats_become(d, idle)
