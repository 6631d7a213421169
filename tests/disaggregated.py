"""Two mock engines that hand prompts over, and what the tests ask of them again and again."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from msgspec.structs import replace

from app.engines.base import EngineStats, GenerateRequest, Prefilled, StepOutput
from app.engines.mock.engine import MockEngine
from app.ids import RunId
from app.messages.handoff import Handoff, Rendezvous
from app.messages.job import PartialOutput, Sampling
from app.pools.schema import Pool

_ids = count()
SMALL = 4096  # bytes in a block


@asynccontextmanager
async def engine(*, max_running: int = 16, ranks: int = 1, **args: Any) -> AsyncIterator[MockEngine]:
    """One engine of 64 blocks; what isn't an argument of the engine is one of its handoff."""
    own = {key: args.pop(key) for key in ("speedup", "total_blocks", "step_ms", "prefill_tokens_per_s") if key in args}
    mock_engine = MockEngine(
        Pool(
            model="m", engine="mock", max_running=max_running, max_model_len=1024, data_parallel_size=ranks,
            args={"kv_events": None, "speedup": math.inf, "total_blocks": 64,
                  "handoff": {"block_bytes": SMALL} | args} | own,
        )
    )  # fmt: skip
    try:
        await mock_engine.start()
        yield mock_engine
    finally:
        await mock_engine.close()


def request(tokens: int = 100, *, first: int = 300, rank: int = 0, **sampling: Any) -> GenerateRequest:
    prompt = [first + i % 1000 for i in range(tokens)]
    settings = {"max_tokens": 12, "ignore_eos": True, "seed": 1} | sampling
    return GenerateRequest(RunId(f"r{next(_ids)}"), prompt, Sampling(**settings), rank=rank)


def again(asked: GenerateRequest, **changes: Any) -> GenerateRequest:
    return replace(asked, id=RunId(f"r{next(_ids)}"), **changes)


def begun(*outputs: StepOutput) -> PartialOutput:
    return PartialOutput([t for o in outputs for t in o.tokens], sum(len(o.text) for o in outputs))


def behind(asked: GenerateRequest, prefilled: Prefilled) -> GenerateRequest:
    """The request for the side that decodes."""
    out = [] if prefilled.output is None else [begun(prefilled.output)]
    return again(asked, handoff=prefilled.handoff, begun=out)


async def run(made: MockEngine, asked: GenerateRequest) -> list[StepOutput]:
    return [output async for output in made.generate(asked)]


def shown(outputs: list[StepOutput], index: int = 0) -> tuple[Any, ...]:
    """All that a client sees of a choice."""
    own = [o for o in outputs if o.index == index]
    return (
        [t for o in own for t in o.tokens],
        "".join(o.text for o in own),
        own[-1].finish,
        own[-1].stop,
        [entry for o in own for entry in o.logprobs or ()],
    )


async def stats_become(made: MockEngine, wanted: Callable[[EngineStats], bool], *, within_s: float = 3.0) -> None:
    deadline = time.monotonic() + within_s
    while not wanted(stats := made.stats()):
        assert time.monotonic() < deadline, stats
        await asyncio.sleep(0.005)


def idle(stats: EngineStats) -> bool:
    return stats.running == stats.waiting == stats.used_blocks == stats.lent_blocks == 0


def room_of(made: MockEngine) -> Rendezvous:
    host, _, port = made._rooms.meets_at.rpartition(":")
    return Rendezvous(host, int(port), 2**62 + next(_ids))


async def at_once(p: MockEngine, d: MockEngine, asked: GenerateRequest) -> list[StepOutput]:
    room: Handoff = room_of(p)
    prefill_result, outputs = await asyncio.gather(
        p.prefill(again(asked, handoff=room)), run(d, again(asked, handoff=room))
    )
    assert (prefill_result.output, prefill_result.handoff) == (None, None)
    return outputs
