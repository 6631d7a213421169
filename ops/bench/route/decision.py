"""The time of one routing decision: reading the fleet with prefix matches, and choosing. In-process, with Valkey."""

import asyncio
import gc
import time
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import uvloop

from app.dispatch.event_queue import EventQueue
from app.dispatch.fleet.fleet_reader import FleetReader
from app.dispatch.inflight import InFlight, RoutingHints
from app.dispatch.placing.placement_round import PlacementRound
from app.ids import ApiId, PoolId, RequestId, RunId, WorkerId
from app.keys import Keys
from app.kv.blocks import HASH_BYTES
from app.kv.changes import Changes
from app.kv.groups import grids_of
from app.kv.prefix_index import KvIndex
from app.messages.job import Job, Sampling
from app.messages.lease import Grid, Lease, Speeds, Worker
from app.messages.wire import encode
from app.pools.schema import Pool
from app.store import Wire
from ops.bench.parts import Say
from ops.bench.size import Size
from ops.bench.systems import connected, valkey
from tests.loads import set_load

POOL, KEYS, BLOCK = PoolId("bench"), Keys("bench"), 32
TOTAL_BLOCKS = 1_000_000
PROMPT_BLOCKS = 2000
PER_S = 200.0
_LINE = 2  # requests that wait for their prefill on each worker, and may share the prompt's prefix
_POOLS = {POOL: Pool(model="bench", engine="mock", block_size=BLOCK)}


def decision(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Milliseconds at 16 workers, bytes a block, and how both lengths scale."""
    with valkey(directory) as port:
        return uvloop.run(_decision(port, size, say))


async def _decision(port: int, size: Size, say: Say) -> dict[str, Any]:
    total, count = size.of(TOTAL_BLOCKS, TOTAL_BLOCKS, 40_000), size.of(200, 50, 5)
    async with connected(port) as (client, wire):
        fleet = FleetReader(wire, KEYS, _POOLS, 1024)
        say(f"decision: {total:,} blocks on 16 workers")
        prompts, bytes_per_block = await _fill(client, wire, 16, total)
        gc.collect()  # as the API process does at its start
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)
        seconds = size.of(20, 5, 0.5)
        say(f"decision: {PER_S:g} a second for {seconds} s")
        paced_ms = await _paced(fleet, prompts, seconds)
        curve_workers = {}
        for workers in size.of((1, 4, 16, 64, 256), (1, 4, 16, 64, 256), (1, 16)):
            say(f"decision: {workers} workers")
            prompts, _ = await _fill(client, wire, workers, total)
            curve_workers[workers] = await _alone(fleet, prompts, count)
        prompts, _ = await _fill(client, wire, 16, total)
        curve_blocks = {}
        for blocks in (1, 8, 64, 512, PROMPT_BLOCKS):
            say(f"decision: prompts of {blocks} blocks")
            cut = [p[: blocks * HASH_BYTES] for p in prompts]
            curve_blocks[blocks] = await _alone(fleet, cut, count)
    p50, p99 = np.percentile(paced_ms, (50, 99))
    return {
        "decision_p50_ms": float(p50),
        "decision_p99_ms": float(p99),
        "bytes_per_block": bytes_per_block,
        "paced_ms": paced_ms,
        "by_workers_ms": curve_workers,
        "by_blocks_ms": curve_blocks,
    }


async def _fill(client: Any, wire: Wire, workers: int, blocks: int) -> tuple[list[bytes], float]:
    """An index of so many blocks; prompts whose prefixes are spread over the workers; bytes of each entry."""
    await client.flushall()
    before = int((await client.info("memory"))["used_memory"])
    random = Random(1)
    rows = [random.randbytes(PROMPT_BLOCKS * HASH_BYTES) for _ in range(max(1, blocks // PROMPT_BLOCKS))]
    worker_rows: list[list[bytes]] = [[] for _ in range(workers)]
    for i, row in enumerate(rows):
        worker_rows[i % workers].append(row)
    caches = []
    for own in worker_rows:
        index = KvIndex(wire, KEYS, KEYS.cached(POOL), _nobody_told)
        for row in own:
            await index.write(Changes(False, [row[j : j + HASH_BYTES] for j in range(0, len(row), HASH_BYTES)], []))
        caches.append(index.number)
    after = int((await client.info("memory"))["used_memory"])
    for i in range(workers):
        worker = Worker(WorkerId(f"w{i}"), POOL, "both", "here", 1, BLOCK, 100_000, 64, 131_072, kv_events=True)
        lease = Lease(worker, speeds=Speeds(20_000.0, 1.0, 0.5, 10.0), caches=[caches[i]])
        await client.set(KEYS.worker(lease.worker.id), encode(lease))
        await client.hset(KEYS.pool(POOL), lease.worker.id, "1,1")
        await set_load(client, KEYS.loads(POOL), lease.worker.id, i % 7 + _LINE, 900, 5000, _LINE, 0, 0, 0, 1.0)
        for j in range(_LINE):
            run = RunId(f"r{i}-{j}.0")
            row = random.choice(rows)
            for level in (4**power for power in range(PROMPT_BLOCKS.bit_length() // 2 + 1)):
                block = row[(level - 1) * HASH_BYTES : level * HASH_BYTES]
                runs = await client.hget(KEYS.starting(POOL), block) or b""
                await client.hset(KEYS.starting(POOL), block, b"\n".join([run.encode(), *runs.split(b"\n")[:7]]))
            await client.hset(KEYS.starting(POOL), run, f"{lease.worker.id}\n".encode() + row)
    prompts = []
    for row in rows[:400]:  # a prefix that one worker has, and a rest that none has
        prefix_bytes = random.randrange(PROMPT_BLOCKS) * HASH_BYTES
        prompts.append(row[:prefix_bytes] + random.randbytes(PROMPT_BLOCKS * HASH_BYTES - prefix_bytes))
    return prompts, (after - before) / (len(rows) * PROMPT_BLOCKS)


async def _nobody_told() -> None:
    pass


@cache
def _tokens(count: int) -> list[int]:
    return [0] * count


async def _decide(fleet: FleetReader, hashes: bytes, rng: Random) -> None:
    tokens = _tokens(len(hashes) // HASH_BYTES * BLOCK + 1)
    job = Job(RequestId("r"), 0, ApiId("a"), tokens, Sampling(64), 0.0)
    inflight = InFlight(job, ((POOL,),), EventQueue(), RoutingHints())
    inflight.attempt.known_hashes[Grid(BLOCK, BLOCK), ""] = hashes  # hashing is the prompt's, not the decision's
    round_ = PlacementRound([inflight], _POOLS, grids_of(_POOLS))
    round_.views = await fleet.read(round_.prompts())
    round_.decide(inflight, rng, 0)


async def _alone(fleet: FleetReader, prompts: list[bytes], count: int) -> float:
    """Median milliseconds, one after the other."""
    took, rng = [], Random(2)
    for i in range(count):
        began = time.perf_counter()
        await _decide(fleet, prompts[i % len(prompts)], rng)
        took.append(1e3 * (time.perf_counter() - began))
    return float(np.median(took))


async def _paced(fleet: FleetReader, prompts: list[bytes], seconds: float) -> list[float]:
    """Milliseconds of each decision since its due time; Poisson arrivals at `PER_S` a second."""
    rng, took, tasks = Random(3), [], []
    due = time.perf_counter() + 0.1

    async def one(i: int, at: float) -> None:
        await _decide(fleet, prompts[i % len(prompts)], rng)
        took.append(1e3 * (time.perf_counter() - at))

    for i in range(int(seconds * PER_S)):
        due += rng.expovariate(PER_S)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        # Since it could begin: the coarse timers of the event loop are not counted.
        tasks.append(asyncio.create_task(one(i, max(due, time.perf_counter()))))
    await asyncio.gather(*tasks)
    return took
