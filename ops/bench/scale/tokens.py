"""The cost of a token for the Redis that it goes through, by the number of API replicas that await a worker's."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import uvloop
from msgspec import Struct
from msgspec.structs import asdict

from app.ids import ApiId, RequestId, WorkerId
from app.messages.events import Delta
from app.runner.token_emitter import TokenEmitter
from app.settings import Settings
from app.store import Connection, Wire
from ops.bench.parts import Say
from ops.bench.scale.fleet import KEYS, POOL
from ops.bench.scale.placing import redis_cpu
from ops.bench.size import Size
from ops.bench.systems import connected, valkey

STREAMS = 100  # of a worker, each with a token in each step
REPLICAS = (1, 9, 18, 36, 180)


class TokenCost(Struct):
    """CPU of Redis in µs, its sockets included."""

    messages: int  # of a step: replicas that await one of its tokens
    message_us: float
    token_us: float


def tokens(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """One worker's messages, sent as fast as Redis takes them, with a subscriber for each replica."""
    with valkey(directory) as port:
        costs = uvloop.run(_tokens(port, size.of(REPLICAS, REPLICAS, REPLICAS[:2]), size.of(3000, 500, 10), say))
    return {"tokens": [{"replicas": replicas} | asdict(cost) for replicas, cost in costs.items()]}


async def _tokens(port: int, apis: Sequence[int], steps: int, say: Say) -> dict[int, TokenCost]:
    costs = {}
    async with connected(port) as (client, _):
        for replicas in apis:
            say(f"tokens: {STREAMS} streams of {replicas} API replicas")
            costs[replicas] = await _cost(client, replicas, steps)
    return costs


async def _cost(client: Any, replicas: int, steps: int) -> TokenCost:
    random, wire = Random(replicas), Wire(client)
    apis = [ApiId(f"{i:08x}") for i in range(replicas)]
    streams = [(RequestId(f"chatcmpl-{i:024x}"), random.choice(apis)) for i in range(STREAMS)]
    emitter = TokenEmitter(wire, KEYS, WorkerId("w"), POOL, Settings())
    sending = asyncio.create_task(emitter.run())
    listening: list[Connection] = [await wire.subscribe(KEYS.out(api), lambda _: None) for api in apis]
    try:
        cpu_time = 0.0
        for step in range(-50, steps):  # those below 0 aren't measured
            if step == 0:
                cpu_time = await redis_cpu(client)
            for request, api in streams:
                emitter.emit(api, Delta(request, 0, " word", [1000 + step]))
            await emitter.drained()
        cpu_time = 1e6 * (await redis_cpu(client) - cpu_time)
    finally:
        sending.cancel()
        for connection in listening:
            connection.close()
        wire.close()
    messages = len({api for _, api in streams})
    return TokenCost(messages, cpu_time / steps / messages, cpu_time / steps / STREAMS)
