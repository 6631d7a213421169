"""The Redis commands for a request that has been placed."""

import struct
import time
from array import array
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from app.dispatch.inflight import InFlight
from app.ids import PoolId, place_id, worker_queue
from app.keys import Keys
from app.kv.blocks import HASH_BYTES
from app.kv.groups import grid_of, points_left
from app.messages.celery_message import priority_step, rendezvous, task_messages
from app.messages.job import ASIDE_PRIORITY, Job
from app.messages.lease import Grid, Lease, Worker
from app.messages.wire import encode
from app.pools.schema import Pool
from app.routing.candidates import Placement
from app.store import Command, clock
from app.store.scripts import PLACE

_GRACE_S = 30  # a record outlives its deadline by this, for workers that read it late
_WHOLE = 1024  # hashes of an outline, as in `coming.lua`


class Placing(Struct, frozen=True):
    command: Command
    attempt: int
    messages: list[Command]  # to the broker, if that is another server


def placement(
    keys: Keys,
    grids: Mapping[PoolId, Grid],
    inflight: InFlight,
    places: list[Placement],
    first: Worker,
    encoders: int = 0,
    *,
    broker_apart: bool = False,
) -> Placing:
    """The call of `place.lua` with record, reservations and messages. Updates the request.

    `first` computes its prompt. `encoders`: how many of the places encode its pictures.
    """
    attempt, job = inflight.attempt, inflight.job
    step = priority_step(job.priority, aside=job.aside)
    ttl_ms = max(1, round((inflight.ends_at - time.monotonic() + _GRACE_S) * 1000))
    split = len(places) - encoders > 1
    if at_once := split and bool(first.meets_at):
        room = rendezvous(first.meets_at, first.ranks, places[encoders].rank) if encoders else None
        job = replace(job, at_once=True, meets=room)
    messages = task_messages(job, step, attempt.handoff, first.meets_at, first.ranks)
    # If both workers begin at once, the decode worker has the request from the beginning, or when pictures are encoded.
    in_sequence = messages[-1] == b""
    if split and job.aside:  # two workers share no gate, so it is last in the queues of both engines
        job = replace(job, aside=False, priority=job.priority + ASIDE_PRIORITY)
    awaits_first = split and not at_once and job.sampling.n == 1
    inflight.attempt = attempt.sent(job, clock.now(), in_sequence=in_sequence, awaits_first=awaits_first)
    hashes = attempt.hashes(grids[places[encoders].pool], job.weights or "")
    names, values, apart = _reserved(keys, job, places, messages, step, broker_apart=broker_apart)
    if job.adapter is not None:
        adapters, _ = keys.loras()
        name, _, version = job.adapter.rpartition("@")
        names.append(adapters)
        values += [name, version]
    command = "EVAL", PLACE, len(names), *names, job.run, encode(job), ttl_ms, outline(hashes), job.reply_to, *values
    return Placing(command, job.attempt, apart)


def _reserved(
    keys: Keys, job: Job, places: Sequence[Placement], messages: Sequence[bytes], step: int, *, broker_apart: bool
) -> tuple[list[str], list[str | int | bytes], list[Command]]:
    """The keys and the arguments of `place.lua` for the record and its places, and the messages to the broker."""
    names, values, apart = [keys.request(job.run)], list[str | int | bytes](), list[Command]()
    for to, message in zip(places, messages, strict=True):
        queue = keys.queue(worker_queue(to.pool, to.worker), step)
        names += [
            keys.worker(to.worker),
            keys.reservations(to.worker),
            keys.loads(to.pool),
            keys.prefilling(to.worker),
            keys.starting(to.pool),
            keys.request(job.run) if broker_apart else queue,
        ]
        rank = f"{to.rank}a" if job.aside or to.lends else to.rank
        if broker_apart and message:
            apart.append(("LPUSH", queue, message))
        queue_message = b"" if broker_apart else message
        values += [to.worker, rank, to.blocks, to.tokens, to.pulls, queue_message]
    return names, values, apart


def outline(hashes: bytes) -> bytes:
    """Hashes that others compare with while the prompt waits: they read several, and Redis copies them whole.

    A long prompt's outline has its first hashes, about as many of the others at equal distances, the last one, and in
    four bytes how many it has. So what is shared is known to a thousandth of its length. Older versions know the first
    ones only.
    """
    blocks = len(hashes) // HASH_BYTES
    if blocks <= 2 * _WHOLE:
        return hashes
    each, step = array("Q", hashes), -(-(blocks - _WHOLE) // _WHOLE)
    sample = each[:_WHOLE] + each[_WHOLE + step - 1 : blocks - 1 : step] + each[blocks - 1 :]
    return sample.tobytes() + struct.pack("<I", blocks)


def expected_tokens(inflight: InFlight, places: Sequence[Placement], lease: Lease, grid: Grid) -> int:
    """Prompt tokens that the one worker is expected to have cached; -1: several do it, or nobody knows its caches.

    `grid`: by which the prompt was looked up.
    """
    job = inflight.job
    reads = job.kind == "decode" and job.sampling.prompt_logprobs is None  # these are computed, cached or not
    alone = len(places) == 1 and not job.begun and not places[0].lends and inflight.attempt.handoff is None and reads
    return len(job.prompt) - places[0].tokens if alone and lease.caches and grid_of(lease.worker) == grid else -1


def prediction(keys: Keys, pool: Pool, grid: Grid, inflight: InFlight, to: Placement, lease: Lease) -> list[Command]:
    """Commands that record where an engine without KV events is expected to leave its prompt for others to resume."""
    hashes = inflight.attempt.hashes(grid, lease.state.weights)
    if lease.worker.kv_events or pool.routing.policy != "kv" or not hashes:
        return []
    key = keys.predicted(to.pool, place_id(to.worker, to.rank))
    ttl_ms = round(pool.routing.predicted_ttl_s * 1000)
    expires = round(clock.now() * 1000) + ttl_ms
    every = points_left(lease.worker)
    points = len(hashes) // HASH_BYTES
    entries = [
        x
        for i in (n * HASH_BYTES for n in range(points) if n + 1 == points or (every and (n + 1) % every == 0))
        # A prompt's tail expires first, and is removed first if there are too many: the rest is a prefix.
        for x in (expires - i / 1000, hashes[i : i + HASH_BYTES])
    ]
    return [
        ("ZADD", key, *entries),
        ("ZREMRANGEBYSCORE", key, "-inf", expires - ttl_ms),
        ("ZREMRANGEBYRANK", key, 0, -1 - lease.worker.total_blocks),  # it can't hold more: the oldest are removed
        ("PEXPIRE", key, ttl_ms),
    ]
