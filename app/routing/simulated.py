"""The `kv` policy for trace-driven simulators: converts their state for `policy.place`.

The simulator calls `Policy(n_workers=, block_size=, seed=)` once, for each request `policy(block_ids, workers) ->
index`, and `on_prefill_done` and `on_finish` at the ends of prefills and requests. A simulator with a store that all
workers share sets `workers.stored_blocks`: leading blocks of the prompt that are in it.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

from msgspec.structs import replace

from app.ids import PoolId, RunId, WorkerId
from app.messages.lease import Lease, Load, Worker
from app.pools.schema import Routing
from app.routing.candidates import Ask, Candidate, Option, PlaceLimits, Tiered
from app.routing.policy import place
from app.routing.throughput_meter import ThroughputMeter

_LIMITS = PlaceLimits(max_queued=10**9)
_BLOCK_BYTES, _AT_ONCE = 10**6, 1e18  # any, and bytes a second


class Policy:
    """The `kv` policy for one simulation.

    Parameters are fields of `app.pools.schema.Routing`, and the seconds that a block of the store takes to load.
    """

    def __init__(
        self, n_workers: int, block_size: int, seed: int, max_running: int = 256, load_s: float = 0.0, **rules: Any
    ) -> None:
        self._rules, self._rng = Routing.model_validate(rules), Random(seed)  # noqa: S311 (no secret)
        self._meters = [ThroughputMeter() for _ in range(n_workers)]
        self._since = [0.0] * n_workers  # by worker: when the first waiting request's prefill began
        self._line: list[dict[Any, int]] = [{} for _ in range(n_workers)]  # by worker: request → tokens to compute
        self._worker = Worker(
            WorkerId(""),
            PoolId("simulated"),
            "both",
            host="",
            pid=0,
            block_size=block_size,
            total_blocks=0,
            max_running=max_running,
            max_model_len=0,
            kv_events=True,
            tier_block_bytes=_BLOCK_BYTES,
        )
        # Of the store: host memory, through which its blocks go, costs nothing more here.
        self._tiers = {"host_bytes_per_s": _AT_ONCE, "store_bytes_per_s": _BLOCK_BYTES / load_s if load_s else 0.0}

    def __call__(self, blocks: Sequence[int], workers: Any) -> int:
        ask = Ask(workers.input_tokens, max_tokens=1, now=workers.now)
        store_blocks = getattr(workers, "stored_blocks", 0)
        options = [self._option(i, w, workers.now, len(blocks), store_blocks) for i, w in enumerate(workers)]
        to = place(ask, options, self._rules, self._rng).placement
        index = int(to.worker)
        if not self._line[index]:
            self._since[index] = workers.now
        self._line[index][workers.request_id] = to.tokens
        self._meters[index].begin(RunId(workers.request_id), workers.now)
        return index

    def on_prefill_done(self, now: float, request: Any, worker: int) -> None:
        self._since[worker] = now
        self._meters[worker].first_token(RunId(request), 0, self._line[worker].pop(request), now)

    def on_finish(self, now: float, request: Any, worker: int) -> None:
        self._meters[worker].end(RunId(request), now)

    def _option(self, index: int, worker: Any, now: float, blocks: int, stored_blocks: int) -> Option:
        own = replace(self._worker, id=WorkerId(str(index)), total_blocks=worker.total_blocks)
        speeds = replace(self._meters[index].read(now), **self._tiers)
        lease = Lease(own, Load(used_blocks=worker.active_blocks), speeds)
        line = self._line[index]
        candidate = Candidate(
            lease,
            _LIMITS,
            rank=0,
            requests=worker.active_requests,
            blocks=0,
            tokens=sum(line.values()),
            waiting=len(line),
            since=self._since[index] if line else 0.0,
        )
        coming = blocks - (worker.potential_blocks - worker.active_blocks)
        tiers = Tiered(store=max(0, stored_blocks - worker.cached_blocks))
        return Option(candidate, worker.cached_blocks, max(coming, worker.cached_blocks), tiered=tiers)
