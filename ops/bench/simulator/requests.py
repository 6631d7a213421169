"""A trace's requests, and what no router can do better than with them."""

import gzip
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby, takewhile
from pathlib import Path
from typing import Any

from ops.bench.simulator.engine import Engine

_BIN_MS = 3000.0  # traces tell times in bins of at most this


@dataclass(slots=True, eq=False)
class Request:
    """A prompt and an answer; lengths in tokens, times in seconds."""

    number: int
    prompt: int
    answer: int
    blocks: tuple[int, ...]  # an id stands for its block and all before it
    known: int  # leading blocks that an earlier prompt of the trace had
    session: str | None
    delay_s: float  # behind the answer to the session's request before
    start: float = 0.0  # in the trace; of a session's first request only
    next: "Request | None" = None  # of its session
    # What a replay finds.
    arrival: float = 0.0
    hit: int = 0  # blocks that were cached when its prefill began
    hit_tokens: int = 0
    worker: int = 0
    expected: int = 0  # tokens to compute, as the router believes
    context: int = 0  # tokens, in the middle of its answer
    first: float = 0.0  # its first token
    done: float = 0.0


@dataclass(frozen=True)
class Trace:
    requests: Sequence[Request]
    heads: Sequence[Request]  # those that come at a time of their own

    @property
    def is_closed(self) -> bool:
        """Whether its requests come in sessions: the next one when the one before is answered."""
        return self.heads[0].session is not None


@dataclass
class _Blocks:
    """Numbers the prefixes of a trace: the same block behind another prefix has another number."""

    numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)

    def read(self, hashes: Sequence[int]) -> tuple[tuple[int, ...], int]:
        """Blocks of a prompt, and how many leading ones an earlier prompt had."""
        parent, blocks = 0, []
        for value in hashes:
            parent = self.numbers.setdefault((parent, value), len(self.numbers) + 1)
            blocks.append(parent)
        shared_blocks = sum(1 for _ in takewhile(self.seen.__contains__, blocks))
        self.seen.update(blocks)
        return tuple(blocks), shared_blocks


def read_trace(path: Path, block_size: int) -> Trace:
    """Lines of JSON, gzipped or not: `timestamp` in ms, `input_length`, `output_length`, `hash_ids`.

    Without `hash_ids` a prompt shares nothing. A row with `session_id` comes `delay` ms behind its session's answer
    before; a session's first one has a `timestamp`, which is not used: sessions are replayed so many at a time.
    """
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        rows = [json.loads(line) for line in lines]
    blocks, fresh = _Blocks(), count(-1, -1)
    requests: list[Request] = []
    heads: list[tuple[float, Request]] = []
    last: dict[str, Request] = {}
    for number, row in enumerate(rows):
        prompt = max(1, row["input_length"])
        hashes = row.get("hash_ids") or [next(fresh) for _ in range(-(-prompt // block_size))]
        session = row.get("session_id")
        request = Request(
            number, prompt, max(1, row["output_length"]), *blocks.read(hashes), session, row.get("delay", 0) / 1e3
        )
        requests.append(request)
        if session in last:
            last[session].next = request
        elif "timestamp" in row:
            heads.append((row["timestamp"], request))
        if session is not None:
            last[session] = request
    _spread(heads)
    return Trace(requests, [request for _, request in sorted(heads, key=lambda head: head[0])])


def _spread(heads: Sequence[tuple[float, Request]]) -> None:
    """Sets the starts. Requests of one time are spread over the time until the next one, as no burst was there."""
    bins = [(at, [request for _, request in group]) for at, group in groupby(sorted(heads, key=_at), key=_at)]
    for index, (at, group) in enumerate(bins):
        gap = min(bins[index + 1][0] - at, _BIN_MS) if index + 1 < len(bins) else 0.0
        for place, request in enumerate(group):
            request.start = (at - bins[0][0] + gap * place / len(group)) / 1e3


def _at(head: tuple[float, Request]) -> float:
    return head[0]


def bounds(trace: Trace, engine: Engine, workers: int, warm_up: float) -> Mapping[str, Any]:
    """The work that is asked of the workers, and the best share of blocks that can be found cached.

    `uncached` and `ideal`: seconds of a worker that a second of the trace asks for, without any cache and with an
    infinite one that all share. `hit_infinite`, `hit_pooled`: of that cache, and of one as large as all workers' own.
    """
    pool: OrderedDict[int, None] = OrderedDict()
    steady_requests, pool_hits = trace.requests[int(len(trace.requests) * warm_up) :], 0
    for request in trace.requests:
        hit = sum(1 for _ in takewhile(pool.__contains__, request.blocks))
        pool_hits += hit if request.number >= steady_requests[0].number else 0
        for block in reversed(request.blocks):
            pool[block] = None
            pool.move_to_end(block)
        while len(pool) > engine.cache_blocks * workers:
            pool.popitem(last=False)
    span = max(request.start for request in trace.heads) or 1.0
    blocks = sum(len(request.blocks) for request in steady_requests)
    known_tokens = [min(r.known * engine.block_size, r.prompt - 1) for r in trace.requests]
    ideal = sum(engine.work_s(r.prompt, r.answer, t) for r, t in zip(trace.requests, known_tokens, strict=True))
    return {
        "uncached": sum(engine.work_s(r.prompt, r.answer, 0) for r in trace.requests) / span,
        "ideal": ideal / span,
        "hit_infinite": sum(request.known for request in steady_requests) / blocks,
        "hit_pooled": pool_hits / blocks,
    }
