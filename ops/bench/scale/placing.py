"""A placement's CPU in Redis and in the API process, and how long a round of 64 holds the API's event loop."""

import asyncio
import gc
import time
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import uvloop
from msgspec import Struct
from msgspec.structs import asdict

from app.dispatch.answering.dispatcher import Dispatcher
from app.dispatch.fleet.fleet_reader import FleetReader
from app.dispatch.inflight import InFlight
from app.kv.blocks import HASH_BYTES
from app.store import Wire
from ops.bench.loop import watched
from ops.bench.parts import Say
from ops.bench.scale.fleet import API, KEYS, POOLS, PROMPT, blocks, fill, request
from ops.bench.size import Size
from ops.bench.systems import connected, valkey

WORKERS = (64, 256, 1000)
ROUND = 64


class Cost(Struct):
    """The cost of the rounds of one size at one size of the fleet; milliseconds."""

    redis_ms: float  # CPU of Redis for a placement: reading and writing
    api_ms: float  # CPU of this process for one
    block_ms: float  # the longest that a round held the event loop, median over the rounds
    round_ms: float  # from the first read to the last reply, median


def placing(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """The figures of most workers, and all by the number of workers."""
    with valkey(directory) as port:
        costs = uvloop.run(_placing(port, size, say))
    most = max(workers for workers, _ in costs)
    alone, full = costs[most, 1], costs[most, ROUND]
    return {
        "place_redis_ms_1000": alone.redis_ms,
        "place_api_ms_1000": alone.api_ms,
        "round64_block_ms_1000": full.block_ms,
        "placing": [{"workers": workers, "round": size} | asdict(cost) for (workers, size), cost in costs.items()],
    }


async def _placing(port: int, size: Size, say: Say) -> dict[tuple[int, int], Cost]:
    costs = {}
    rounds = size.of(30, 8, 1)
    async with connected(port) as (client, wire):
        for workers in size.of(WORKERS, WORKERS, (16,)):
            say(f"placing: on {workers:,} workers")
            conversations = await fill(client, wire, workers, blocks(size))
            for at_once in (1, ROUND):
                say(f"placing: rounds of {at_once} on {workers:,} workers")
                costs[workers, at_once] = await _cost(
                    client, wire, conversations, at_once, rounds * (4 if at_once == 1 else 1)
                )
    return costs


async def _cost(client: Any, wire: Wire, held: list[bytes], size: int, rounds: int) -> Cost:
    dispatcher, random = Dispatcher(wire, KEYS, API, FleetReader(wire, KEYS, POOLS, 1024), POOLS), Random(size)
    request_rounds = iter(
        [[request(i * size + j, _asked(random, held)) for j in range(size)] for i in range(2 * rounds + 2)]
    )
    for _ in range(2):  # not measured: what a replica knows from the rounds before
        await _round(dispatcher, next(request_rounds))
    gc.collect()
    redis_s, api_s, took = await redis_cpu(client), time.process_time(), []
    for _ in range(rounds):
        began = time.perf_counter()
        await _round(dispatcher, next(request_rounds))
        took.append(time.perf_counter() - began)
    count = rounds * size
    api_s, redis_s = time.process_time() - api_s, await redis_cpu(client) - redis_s
    blocks = [(await watched(_round(dispatcher, in_flight)))[1] for in_flight in request_rounds]
    return Cost(1e3 * redis_s / count, 1e3 * api_s / count, 1e3 * median(blocks), 1e3 * median(took))


async def _round(dispatcher: Dispatcher, in_flight: list[InFlight]) -> None:
    await asyncio.gather(*(dispatcher.send(inflight) for inflight in in_flight))
    dispatcher.in_flight.clear()


async def redis_cpu(client: Any) -> float:
    """Seconds that Redis has used."""
    info = await client.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


def _asked(random: Random, held: list[bytes]) -> bytes:
    """A conversation that some worker has, as far as the second half of it, with another end."""
    prefix_bytes = random.randrange(PROMPT // 2, PROMPT) * HASH_BYTES
    return random.choice(held)[:prefix_bytes] + random.randbytes(PROMPT * HASH_BYTES - prefix_bytes)
