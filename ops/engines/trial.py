"""A run of the adapter on whichever vLLM is first on the path: a prompt twice, by the smallest real model.

Run by `make engines` in a process of its own; its last line is JSON.
"""

import asyncio
import json
from contextlib import aclosing
from typing import Any

import zmq
import zmq.asyncio

from app.engines.base import Engine, GenerateRequest
from app.ids import RunId
from app.kv.events import decode_batch
from app.messages.job import Sampling
from app.pools.schema import Pool
from app.runner.engine_factory import create_engine
from ops.engines.known import ROOT

_MODEL = ROOT / ".xylem/models/SmolLM2-135M-Instruct"
_PROMPT = [*range(100, 180)]  # two and a half blocks
_ARGS = {
    "kv_cache_memory_bytes": 2**27,
    "env": {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"},
}


async def trial() -> dict[str, Any]:
    engine = create_engine(Pool(model="m", engine="vllm", path=_MODEL, max_model_len=256, max_running=2, args=_ARGS))
    info = await engine.start()
    try:
        source = engine.kv_events()[0]
        with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as sub:
            sub.connect(source.endpoint)
            sub.subscribe("")
            await asyncio.sleep(0.5)
            first, second = await _answer(engine, "a"), await _answer(engine, "b")
            batch = decode_batch((await asyncio.wait_for(sub.recv_multipart(), 10))[-1])
    finally:
        await engine.close()
    return {
        "version": info.version, "equal": first[0] == second[0], "cached_tokens": second[1],
        "events": [type(event).__name__ for event in batch.events], "tokens": first[0],
    }  # fmt: skip


async def _answer(engine: Engine, name: str) -> tuple[list[int], int]:
    request = GenerateRequest(RunId(name), _PROMPT, Sampling(max_tokens=8, temperature=0.0, ignore_eos=True))
    tokens: list[int] = []
    cached_tokens = 0
    async with aclosing(engine.generate(request)) as steps:
        async for step in steps:
            tokens += step.tokens
            cached_tokens = max(cached_tokens, step.cached_tokens)
    return tokens, cached_tokens


if __name__ == "__main__":
    print(json.dumps(asyncio.run(trial())))
