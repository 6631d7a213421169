"""A simulated fleet in Redis, written with the product's own commands: leases, reservations and prefix indices."""

import time
from random import Random
from typing import Any

from app.dispatch.event_queue import EventQueue
from app.dispatch.inflight import InFlight, RoutingHints
from app.dispatch.placing.placement_commands import placement
from app.ids import ApiId, PoolId, RequestId, WorkerId
from app.keys import Keys
from app.kv.blocks import HASH_BYTES
from app.kv.changes import Changes
from app.kv.groups import grids_of
from app.kv.prefix_index import KvIndex
from app.messages.job import Job, Sampling, Stage
from app.messages.lease import Grid, Lease, Speeds, Worker
from app.messages.wire import encode
from app.pools.schema import Pool
from app.routing.candidates import Placement
from app.store import Wire
from ops.bench.size import Size

POOL, API, KEYS, BLOCK = PoolId("decode-pool-a"), ApiId("bench"), Keys("bench"), 16
POOLS = {POOL: Pool(model="bench", engine="mock", block_size=BLOCK)}
BLOCKS = 1_000_000
PROMPT = 128  # blocks of a prompt
_SHARED, _SYSTEM_PROMPTS = 32, 16  # leading blocks of a conversation that others have, too; how many of these
_WAITING = 2  # requests that wait for their prefill on each worker
_CHUNK = 20_000  # blocks written at once

_random = Random(1)
_systems = [_random.randbytes(_SHARED * HASH_BYTES) for _ in range(_SYSTEM_PROMPTS)]


def worker(number: int) -> Worker:
    return Worker(WorkerId(f"{number:08x}"), POOL, "both", "here", 1, BLOCK, 100_000, 64, 131_072, kv_events=True)


def conversation(random: Random) -> bytes:
    """Packed hashes: a system prompt, and what nobody else has said."""
    return random.choice(_systems) + random.randbytes((PROMPT - _SHARED) * HASH_BYTES)


def request(number: int, hashes: bytes) -> InFlight:
    """A request for a prompt with these block hashes: hashing is the prompt's cost, not the placement's."""
    tokens = [0] * (len(hashes) // HASH_BYTES * BLOCK + 1)
    job = Job(RequestId(f"r{number}"), 0, API, tokens, Sampling(64), time.time() + 600)
    inflight = InFlight(job, ((POOL,),), EventQueue(), RoutingHints())
    inflight.attempt.known_hashes[Grid(BLOCK, BLOCK), ""] = hashes  # hashed once for all
    return inflight


def blocks(size: Size) -> int:
    """Number of blocks of all caches together."""
    return size.of(BLOCKS, BLOCKS, BLOCKS // 50)


async def fill(client: Any, wire: Wire, workers: int, total: int) -> list[bytes]:
    """A fleet of so many workers that hold so many blocks; the conversations in their caches."""
    await client.flushall()
    random, conversations = Random(2), []
    own = PROMPT - _SHARED
    each = max(1, total // workers // own)
    for number in range(workers):
        mine = [conversation(random) for _ in range(each)]
        conversations += mine[:4]
        hashes = list(dict.fromkeys(row[i : i + HASH_BYTES] for row in mine for i in range(0, len(row), HASH_BYTES)))
        index = KvIndex(wire, KEYS, KEYS.cached(POOL), nobody_told)
        for i in range(0, len(hashes), _CHUNK):
            await index.write(Changes(False, hashes[i : i + _CHUNK], []))
        await register(client, worker(number), index.number)
        await wire.execute([_waiting(random, number * _WAITING + i, worker(number)) for i in range(_WAITING)])
    return conversations


async def register(client: Any, own: Worker, cache: int) -> None:
    """Registers a worker as `workers/engine/lease.py` does."""
    await client.set(KEYS.worker(own.id), encode(Lease(own, speeds=Speeds(20_000.0, 1.0, 0.5, 10.0), caches=[cache])))
    await client.hset(KEYS.pool(own.pool), own.id, "1,1")


async def nobody_told() -> None:
    pass


def _waiting(random: Random, number: int, to: Worker) -> Any:
    inflight = request(-1 - number, conversation(random))
    place = Placement(POOL, to.id, 0, PROMPT, random.randrange(100, PROMPT * BLOCK), 0)
    inflight.attempt = inflight.attempt.decided([Stage("decode", to.pool, to.id, 0)], "", {}, behind=False)
    return placement(KEYS, grids_of(POOLS), inflight, [place], to).command
